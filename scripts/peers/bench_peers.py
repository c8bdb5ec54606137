"""Compare the times of other simulators of federated learning for the same work.

    python scripts/peers/bench_peers.py --data-root FOLDER_WITH_MNIST
    python scripts/peers/bench_peers.py --data Digits --runners plain ours --clients 10 --rounds 4 --repeats 1

Runs the same images, network, initial weights, batch size, learning rate and number of SGD steps in Apple's pfl,
Flower's simulation engine, FedLab, fluke and gossipy, in the loop that people write first (`plain`: a module, a
DataLoader and an optimizer for each client) and in this library (`ours`), and prints a Markdown table of seconds a
round and their ratios, as they are. `--out` keeps the table and every run's numbers as peers.md and peers.json.

- Peers are installed with pip, each into an environment of its own below `--venvs` (never in the repository), which
  adds it to the packages of the present Python: all run the same torch. A peer that does not install is a line in the
  table with the reason. The first run needs a package index; after that nothing leaves the machine.
- Each run is a process of its own, CPU only. Timed are the rounds: not the start, the imports, the loading of data or
  the accuracy at the end, which one common function measures. The first round warms up (Flower starts its actors in
  it, pfl evaluates) and is not counted. A run's number is the median of its other rounds.
- Runs alternate, each repeat in another order; ratios are taken within a repeat, and the table has their median and
  range. Steps are counted inside each runner.
- Threads are each runner's own defaults and stand in the table; `--threads 1` sets OMP_NUM_THREADS for all. On a busy
  machine several OpenMP threads wait for each other, and times of runners that use them explode: measure on an idle
  one, or with one thread. CPU seconds (all threads of the process; Flower's actors are others) suffer less.

The command ends with 1 if a runner took another number of steps, if its accuracy differs from that of `plain` by more
than the tolerance, or if `plain` learned too little (below twice chance) for that to mean anything; with 2 after a
wrong option; else with 0, also where peers are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

RUNNERS = Path(__file__).resolve().parent
ROOT = RUNNERS.parent.parent
sys.path.insert(0, str(RUNNERS))

from peer_environments import NotInstalled, clean_environment, default_folder, python_of, short  # noqa: E402
from peer_list import OURS, PEERS, Peer  # noqa: E402
from peer_table import Line, busy, complaints, markdown, seconds_per_round  # noqa: E402
from peer_workload import BadWork, load, write  # noqa: E402

WORKS = {
    "fedavg": "FedAvg with a server",
    "gossip": "gossip with one random partner",
}


class Parser(argparse.ArgumentParser):
    """One sentence for a user's mistake."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2, as everywhere in the project."""
        self.exit(2, f"bench_peers: {message}; --help says what it takes\n")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    add = parser.add_argument
    add("--work", nargs="+", choices=list(WORKS), default=list(WORKS), help="kinds of work (default: both)")
    add("--runners", nargs="+", choices=names, default=names, help="whom to compare (default: all)")
    add("--clients", type=_number, default=100, help="number of clients (default: 100)")
    add("--participants", type=_number, help="clients that train in a round of FedAvg (default: all)")
    add("--samples", type=_number, help="images of each client (default: 200, or as many as there are)")
    add("--batch-size", type=_number, default=16, help="images in a batch (default: 16)")
    add("--local-epochs", type=_number, default=1, help="local epochs in a round (default: 1)")
    add("--lr", type=float, default=0.2, help="learning rate of plain SGD (default: 0.2)")
    add("--rounds", type=_number, default=8, help="rounds, the warm-up included (default: 8)")
    add("--repeats", type=_number, default=3, help="runs of each runner (default: 3)")
    add("--data", choices=["auto", "MNIST", "Digits"], default="auto", help="default: MNIST if there, else Digits")
    add("--data-root", default=os.environ.get("DFL_DATA_ROOT"), help="folder of MNIST (default: DFL_DATA_ROOT, ./data)")
    add("--network", choices=["lenet", "mlp"], help="default: lenet for MNIST, mlp (64 hidden units) for Digits")
    add("--test-samples", type=_number, default=2000, help="test images, common to all (default: 2000, at most)")
    add("--seed", type=int, default=0, help="of the data and the first repeat (default: 0)")
    add("--tolerance", type=float, default=0.02, help="largest difference of accuracies in FedAvg (default: 0.02)")
    add("--gossip-tolerance", type=float, default=0.05, help="the same for gossip, where orders differ (default: 0.05)")
    add("--threads", type=_number, help="OMP_NUM_THREADS of every run (default: as it is, so each runner's own)")
    add("--venvs", type=Path, default=default_folder(), help="folder of the peers' environments (default: %(default)s)")
    add("--timeout", type=float, default=1800.0, help="seconds that a run may take (default: 1800)")
    add("--out", type=Path, help="folder for peers.md and peers.json (default: none)")
    words = parser.parse_args(argv)
    words.participants = words.participants or words.clients
    if words.clients < 2:
        parser.error("--clients must be 2 or more")
    if words.participants > words.clients:
        parser.error(f"--participants {words.participants} are more than --clients {words.clients}")
    if words.rounds < 2:
        parser.error("--rounds must be 2 or more: the first one warms up and is not counted")
    if words.venvs.resolve().is_relative_to(ROOT):
        parser.error(f"--venvs {words.venvs} lies in the repository; give a folder outside it")
    if not any(work in peer.asked for peer in PEERS if peer.name in words.runners for work in words.work):
        parser.error(f"none of the runners {', '.join(words.runners)} does {' or '.join(words.work)}")
    return words


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of 1 or more")
    return number


def main(argv: list[str] | None = None) -> int:
    words = parse(argv)
    try:
        data = load(words.data, words.data_root)
        words.network = words.network or ("mlp" if data.name == "Digits" else "lenet")
        if words.network == "lenet" and min(data.images.shape[2:]) < 16:
            raise BadWork(f"lenet needs images of at least 16 x 16 pixels, {data.name} are smaller; use --network mlp")
        words.samples = words.samples or max(1, min(200, len(data.labels) // words.clients))
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            file = Path(folder) / "data.npz"
            write(file, data, words.network, words.clients, words.samples, words.test_samples, words.seed)
            job = {
                "data": str(file),
                "scale": data.affine[0],
                "shift": data.affine[1],
                "classes": int(data.labels.max()) + 1,
                **{name: getattr(words, name) for name in ("network", "local_epochs", "batch_size", "lr", "rounds")},
            }
            return compare(words, data.name, job, Path(folder))
    except BadWork as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2


@dataclass
class Part:
    """One kind of work, its runners, and the results that it must have.

    Args:
        work: `fedavg` or `gossip`.
        lines: a runner each, filled repeat by repeat.
        job: what `peer_job.Job` reads, without seed and folder.
        steps: SGD steps that every runner must take.
        tolerance: largest difference of accuracies.
    """

    work: str
    lines: list[Line]
    job: dict[str, Any]
    steps: int
    tolerance: float


def compare(words: argparse.Namespace, data: str, job: dict[str, Any], folder: Path) -> int:
    """Run all kinds of work; print and save the results after every repeat."""
    pythons: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for peer in PEERS:
        if peer.name in words.runners and peer.asked.keys() & set(words.work):
            try:
                pythons[peer.name] = python_of(peer, words.venvs)
            except NotInstalled as error:
                reasons[peer.name] = str(error)
                say(f"{peer.name}: {error}")
    parts = []
    for work in words.work:
        known = [peer for peer in PEERS if work in peer.asked and peer.name in pythons.keys() | reasons.keys()]
        lines = [Line(peer, reason=reasons.get(peer.name, "")) for peer in known]
        participants = words.participants if work == "fedavg" else words.clients
        steps = words.rounds * participants * words.local_epochs * math.ceil(words.samples / words.batch_size)
        tolerance = words.tolerance if work == "fedavg" else words.gossip_tolerance
        parts.append(Part(work, lines, {**job, "work": work, "participants": participants}, steps, tolerance))
    text = ""
    for repeat in range(words.repeats):
        for part in parts:
            run_once(words, part, pythons, repeat, folder)
        text = page(words, data, parts, repeat + 1)
        if words.out is not None:
            keep(words, parts, text)
    print(text)
    return int(any(complaints(part.lines, part.steps, part.tolerance, part.job["classes"]) for part in parts))


def page(words: argparse.Namespace, data: str, parts: list[Part], repeats: int) -> str:
    """Format all results so far as Markdown."""
    tables = [
        markdown(p.work, WORKS[p.work], p.lines, p.steps, p.tolerance, p.job["classes"]) for p in parts if p.lines
    ]
    lines = [line for part in parts for line in part.lines]
    return "\n".join([heading(words, data, repeats), *tables, *busy(lines, os.cpu_count() or 1)])


def keep(words: argparse.Namespace, parts: list[Part], text: str) -> None:
    """Write peers.md and peers.json."""
    record: dict[str, Any] = {"settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(words).items()}}
    for part in parts:
        record[part.work] = {
            "runners": {line.peer.name: {"reason": line.reason, "runs": line.runs} for line in part.lines},
            "steps": part.steps,
            "tolerance": part.tolerance,
            "not_the_same": complaints(part.lines, part.steps, part.tolerance, part.job["classes"]),
        }
    words.out.mkdir(parents=True, exist_ok=True)
    (words.out / "peers.md").write_text(text, encoding="utf-8")
    (words.out / "peers.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def heading(words: argparse.Namespace, data: str, repeats: int) -> str:
    """Describe the work and the machine."""
    omp = words.threads or os.environ.get("OMP_NUM_THREADS")
    return (
        f"{data}, {words.clients} clients with {words.samples} images each (IID), {words.participants} of them in a "
        f"round of FedAvg, {words.network}, batches of {words.batch_size}, {words.local_epochs} local epoch(s), plain "
        f"SGD with a rate of {words.lr:g}, {words.rounds} rounds of which the first is not counted, {repeats} "
        f"alternating run(s) of each.\n\n"
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, CPU only, torch "
        f"{torch.__version__}, Python {platform.python_version()}; OMP_NUM_THREADS {omp or 'not set'}.\n"
    )


def run_once(words: argparse.Namespace, part: Part, pythons: dict[str, Path], repeat: int, folder: Path) -> None:
    """Run every runner once, starting with another one in each repeat."""
    able = [line for line in part.lines if line.peer.name in pythons]
    start = repeat % max(1, len(able))
    for line in able[start:] + able[:start]:
        name = line.peer.name
        runs = folder / f"{part.work}-{name}-{repeat}"
        job = {**part.job, "seed": words.seed + repeat, "folder": str(runs)}
        result = one(line.peer, pythons[name], job, words.timeout, words.threads)
        if isinstance(result, str):
            line.reason = f"failed: {result}"
        else:
            line.runs[repeat] = result
        told = result if isinstance(result, str) else f"{seconds_per_round(result):.3g} s a round"
        say(f"{part.work}, run {repeat + 1} of {words.repeats}, {name}: {told}")


def one(peer: Peer, python: Path, job: dict[str, Any], timeout: float, threads: int | None) -> dict[str, Any] | str:
    """Run one runner; return its result, or a sentence that says why there is none."""
    runs = Path(job["folder"])
    runs.mkdir()
    file = runs / "job.json"
    file.write_text(json.dumps(job))
    environment = {**clean_environment(), "TMPDIR": str(runs), "RAY_TMPDIR": str(runs)}
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if peer.name == OURS:
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    started, load_before = time.perf_counter(), os.getloadavg()[0]
    command = [str(python), str(RUNNERS / f"run_{peer.name}.py"), str(file)]
    process = subprocess.Popen(
        command,
        cwd=runs,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, so that a simulator's helpers end with it
    )
    try:
        answer, noise = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"it took more than {timeout:.0f} s"
        raise
    if process.returncode:
        lines = [line for line in noise.splitlines() if line.strip()]
        return short(lines[-1] if lines else f"it ended with {process.returncode}")
    whole = time.perf_counter() - started
    return {**json.loads(answer.splitlines()[-1]), "process_seconds": whole, "load_before": load_before}


def say(sentence: str) -> None:
    """Print progress to standard error, apart from the table."""
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run in progress is ended with the script
    sys.exit(main())
