"""End real runs at random moments, resume them, and compare the end with a run that was left alone.

    python scripts/kill.py run                              # 50 moments over all ways, one process and two
    python scripts/kill.py run --moments 20 --devices 1     # one process only
    python scripts/kill.py run --seed 7 --case 12           # one case again, after a difference

A case starts `dfl-fit` on a small federation, waits for a random moment of the run, and ends it: by SIGTERM, Ctrl-C
(SIGINT to all processes, as a terminal sends it), SIGKILL, or a disk that is full from that moment on (a limit on the
size of files, so that writes fail). With two processes the signal goes to the first or to the other one. Then the run
continues from its last checkpoint, or starts again if there is none yet. In the end every bit of the last checkpoint
(models, EarlyStopping, all other callbacks), every row of metrics.csv but its seconds, the arrays and the summary must
be what they are without an interruption; the exit code and the one sentence must be right; no process may stay, and no
round may be lost but those since the last checkpoint. The exit code is 1 if anything of that is not so.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tables import Table

from killing.results import differences, result, rounds_saved, rounds_written, run_folder
from killing.starts import Run, fill_disk, load, seed_and_cold, send

EVERY = 2
"""Rounds between two checkpoints."""
CONFIG = f"""
seed_everything: 3
trainer:
  max_rounds: 30
  accelerator: cpu
  checkpoint_every: {EVERY}
  check_val_every_n_epoch: 3
  enable_progress_bar: false
  default_root_dir: out
  callbacks: [{{class_path: EarlyStopping, init_args: {{monitor: val_loss, patience: 1, min_delta: 0.2}}}}]
model:
  network: {{class_path: MLP, init_args: {{hidden: [16]}}}}
  local_epochs: 1
  batch_size: 16
  optimizer: {{class_path: SGD, init_args: {{lr: 0.5}}}}
data: {{class_path: Digits, init_args: {{num_clients: 30, samples_per_client: 20, val_fraction: 0.2}}}}
dropout: {{class_path: Bernoulli, init_args: {{rate: 0.3}}}}
selection: AFIND
threshold: AdaptiveThreshold
aggregation: Boltzmann
"""
LAST = Path("checkpoints") / "last.ckpt"
LONGEST = 30.0
"""Seconds within which all processes must be gone."""


@dataclass(frozen=True)
class Way:
    """A way to end a run: what is done, to whom, and what the first process then leaves with.

    Args:
        signum: sent to it; None: its disk is full.
        target: `first`, `other` or `all` processes.
        codes: the exit codes that are right, with the beginning of what the run says.
        keeps: it saves the last complete round before it leaves.
    """

    signum: int | None
    target: str
    codes: dict[int, str]
    keeps: bool = False


STOPPED = "stopped "
GONE = "process 1 of the run has ended (signal"
WAYS = {
    "SIGTERM": Way(signal.SIGTERM, "first", {143: STOPPED, -15: ""}, keeps=True),
    "Ctrl-C": Way(signal.SIGINT, "all", {130: STOPPED, -2: ""}, keeps=True),
    "SIGKILL": Way(signal.SIGKILL, "first", {-9: ""}),
    "full disk": Way(None, "all", {2: ""}),
    "SIGTERM to the other": Way(signal.SIGTERM, "other", {143: STOPPED, 2: GONE}, keeps=True),
    "SIGKILL of the other": Way(signal.SIGKILL, "other", {2: GONE}),
}
ALONE = ["SIGTERM", "Ctrl-C", "SIGKILL", "full disk"]


@dataclass(frozen=True)
class Case:
    """One interruption."""

    number: int
    devices: int
    way: str
    moment: float
    """Part of the processor seconds of an uninterrupted run, from 0 to 1: a busy machine does not change them."""
    delay: float
    """Seconds after that: there are moments in which a process only waits."""
    limit: float
    """Of a full disk: the longest possible file, as a part of a checkpoint."""


@dataclass
class Found:
    """Result of a case."""

    case: Case
    code: int | None = None
    seconds: float = 0.0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run of so many processes."""

    result: dict[str, Any]
    seconds: float
    spent: float
    """Processor seconds of its first process."""
    size: int
    """Bytes of its checkpoint."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that were asked for; returns the exit code."""
    words = make_parser().parse_args(argv)
    chosen = [(d, way) for d in words.devices for way in (ALONE if d == 1 else WAYS) if way in words.ways]
    if not chosen:
        print(f"kill.py run: one process can be ended by {', '.join(ALONE)}; give --devices 2 too", file=sys.stderr)
        return 2
    cases = [make_case(words.seed, number, chosen) for number in range(words.moments)]
    cases = [case for case in cases if words.case in (None, case.number)]
    folder = Path(tempfile.mkdtemp(prefix="kill_test_"))
    if not words.cold:
        load()
    references = {d: make_reference(folder / f"reference-{d}", d, words.cold) for d in words.devices}
    found = []
    for case in cases:
        found.append(carry_out(case, folder / f"case-{case.number}", references[case.devices], words.cold))
        print(describe(found[-1]), flush=True)
        if not found[-1].wrong:
            shutil.rmtree(folder / f"case-{case.number}")
    bad = [one.case.number for one in found if one.wrong]
    print(f"\n{table(found, references).markdown()}")
    if bad:
        print(f"\nwrong: cases {bad} of --seed {words.seed}; their files are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = seed_and_cold("kill.py run", __doc__)
    parser.add_argument("--moments", type=int, default=50, metavar="N", help="cases, the ways in turn; default 50")
    parser.add_argument("--case", type=int, metavar="K", help="this one of the cases only")
    parser.add_argument("--devices", type=int, nargs="+", choices=(1, 2), default=[1, 2], help="processes of a run")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=f"of {list(WAYS)}")
    return parser


def make_case(seed: int, number: int, ways: Sequence[tuple[int, str]]) -> Case:
    """Draw case `number`, the same for the same seed and ways."""
    draw = random.Random(f"{seed} {number}")
    devices, way = ways[number % len(ways)]
    return Case(number, devices, way, draw.random(), draw.uniform(0, 0.3), draw.choice([0.0, 0.01, 0.5, 0.9]))


# --- one case ---------------------------------------------------------------------------------------------------------
def start(folder: Path, devices: int, cold: bool, *more: str) -> Run:
    """Start `dfl-fit` in the folder of a case."""
    folder.mkdir(exist_ok=True)
    (folder / "small.yaml").write_text(CONFIG, encoding="utf-8")
    return Run(["--config", "small.yaml", "--trainer.devices", str(devices), *more], folder, cold)


def make_reference(folder: Path, devices: int, cold: bool) -> Reference:
    """Make a run without interruption.

    Raises:
        RuntimeError: it does not end well.
    """
    run = start(folder, devices, cold)
    seconds = run.wait()
    made = run_folder(folder)
    if run.code != 0 or made is None:
        raise RuntimeError(f"the run of {devices} processes that is left alone ends with {run.code}: {run.said}")
    rounds = rounds_written(made)
    print(f"{devices} process{'es' * (devices > 1)}: {rounds} rounds in {seconds:.1f} s", flush=True)
    return Reference(result(made), seconds, run.spent, (made / LAST).stat().st_size)


def carry_out(case: Case, folder: Path, reference: Reference, cold: bool) -> Found:
    """Start, end, resume and compare."""
    way, found = WAYS[case.way], Found(case)
    run = start(folder, case.devices, cold)
    try:
        while run.look() and run.spent < case.moment * reference.spent:
            time.sleep(0.005)
        time.sleep(case.delay)
        strike(run, way, int(case.limit * reference.size))
        found.seconds = run.wait()
    finally:
        run.end()
    found.code = run.code
    found.wrong += judge(run, way, found.seconds)
    made = run_folder(folder)
    saved = rounds_saved(made / LAST) if made is not None else 0
    found.lost = max(0, rounds_written(made) - saved)  # a saved round that waits for its evaluation has no row yet
    if found.lost > (0 if way.keeps and run.code not in (-15, 2) else EVERY):
        found.wrong.append(f"{found.lost} rounds are lost")
    if run.code != 0:
        found.wrong += resume(case, folder, made if saved else None, cold)
        made = run_folder(folder)
    if made is not None and not found.wrong:
        found.wrong += list(differences(reference.result, result(made)))[:5]
    return found


def strike(run: Run, way: Way, limit: int) -> None:
    """Do to the run what the way says; the other process is waited for until it is there."""
    alive = run.processes()
    while way.target == "other" and len(alive) < 2 and run.look():
        time.sleep(0.002)
        alive = run.processes()
    targets = alive if way.target == "all" else alive[1:] if way.target == "other" else alive[:1]
    for pid in targets:
        if way.signum is None:
            fill_disk(pid, limit)
        else:
            send(pid, way.signum)


def judge(run: Run, way: Way, seconds: float) -> Iterator[str]:
    """List what is wrong with the end of a run."""
    if seconds > LONGEST and run.code != 0:
        yield f"processes are there after {seconds:.0f} s"
    if run.code != 0 and run.code not in way.codes:
        yield f"exit code {run.code}: {run.said}"
    elif run.code:
        sentences = [line.partition(": ")[2] for line in run.said.splitlines() if line.startswith("dfl")]
        if len(sentences) != (run.code > 0) or not "".join(sentences).startswith(way.codes[run.code]):
            yield f"it should say '{way.codes[run.code]}…' and nothing else: {run.said}"
    if any(word in run.said for word in ("Traceback", "Error", "warn", "Exception")):
        yield f"its message is not understood: {run.said}"


def resume(case: Case, folder: Path, made: Path | None, cold: bool) -> Iterator[str]:
    """Continue from the last checkpoint, from the one before if the message offers it, or start again."""
    more = [] if made is None else ["--ckpt_path", str((made / LAST).relative_to(folder))]
    run = start(folder, case.devices, cold, *more)
    run.wait()
    if run.code == 2 and "previous.ckpt" in run.said and made is not None:
        run = start(folder, case.devices, cold, "--ckpt_path", str((made / LAST).with_name("previous.ckpt")))
        run.wait()
    if run.code != 0:
        yield f"resumed, it ends with {run.code}: {run.said}"


# --- what is printed --------------------------------------------------------------------------------------------------
def describe(found: Found) -> str:
    """Describe a case in a line."""
    case = found.case
    left = "was over already" if found.code == 0 else f"exit code {found.code}, gone after {found.seconds:.1f} s"
    end = "; ".join(found.wrong) or "identical"
    return (
        f"case {case.number}: {case.way}, {case.devices} process{'es' * (case.devices > 1)}, "
        f"at {case.moment:.0%}: {left}, {found.lost} rounds lost: {end}"
    )


def table(found: Sequence[Found], references: dict[int, Reference]) -> Table:
    """Make a table by way of ending."""
    columns = ["processes", "ended by", "moments", "was over", "exit codes", "identical", "rounds lost", "seconds"]
    made = Table("Runs that were ended and resumed", columns)
    for devices, way in dict.fromkeys((one.case.devices, one.case.way) for one in found):
        these = [one for one in found if (one.case.devices, one.case.way) == (devices, way)]
        ended = [one for one in these if one.code != 0]
        codes = ", ".join(map(str, sorted({one.code for one in ended if one.code is not None})))
        made.rows.append(
            [
                *(str(devices), way, str(len(these)), str(len(these) - len(ended)), codes),
                *(f"{sum(not one.wrong for one in these)} of {len(these)}", str(max(one.lost for one in these))),
                f"{max((one.seconds for one in ended), default=0.0):.1f}",
            ]
        )
    alone = ", ".join(f"{r.seconds:.1f} s of {d} process{'es' * (d > 1)}" for d, r in references.items())
    made.notes += [
        f"moments: uniform over the first process' work in the run, {alone}; was over: the run had ended before.",
        f"rounds lost: at most, of {EVERY} between checkpoints; seconds: until all processes were gone, at most.",
    ]
    return made
