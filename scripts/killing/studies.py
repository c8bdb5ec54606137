"""End studies and their processes at random moments until they are done, and compare them with a study left alone.

    python scripts/kill.py study                       # 30 kills of five studies or more
    python scripts/kill.py study --kills 3 --seed 7
    python scripts/kill.py study --cold                # every process loads the libraries: slower

A small study of four cells, two at a time, is started again and again. Each time the study's process, that of one of
its cells, or the server of which these are forks, gets SIGKILL, SIGTERM or SIGINT, after a random number of rounds or
of seconds. A cell that was ended is started again by its study; one whose server was ended continues. In the end the
tables, and all that the runs have left but times, must be those of a study left alone, to the last bit; no kill
may cost a cell more rounds than there are between two checkpoints, and the study must say in one sentence why it has
ended. The exit code is 1 if anything of that is not so.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.tables import Table

from dfl_lightning.utils.storage.locks import is_locked
from killing.cells import cells_of, fork_cells, is_alive, server_of
from killing.results import differences, result, rounds_saved, rounds_written
from killing.starts import PROC, Run, load, seed_and_cold, send

EVERY = 5
"""Rounds between two checkpoints."""
STUDY = f"""\
# Cells that are killed
name: ended
base:
  trainer:
    {{max_rounds: ROUNDS, checkpoint_every: {EVERY}, check_val_every_n_epoch: 25, accelerator: cpu, devices: DEVICES,
      cohorts: 2}}
  model: {{network: {{class_path: MLP, init_args: {{hidden: [4]}}}}, local_epochs: 1, batch_size: 16}}
  data: {{class_path: Digits, init_args: {{num_clients: 6, samples_per_client: 30}}}}
  dropout: {{class_path: Bernoulli, init_args: {{rate: 0.3}}}}
  selection: {{class_path: Gossip, init_args: {{k: 2}}}}
rows:
  Gossip: {{}}
  Local: {{selection.k: 0}}
columns:
  IID: {{data.partition: IID}}
SECOND
seeds: [0]
score: last
"""
SECOND = "  rotated: {data.partition: {class_path: RotatedClusters, init_args: {degrees: [0, 90]}}}"
"""The second column."""
CODES = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}
"""Exit codes of a study that gets a signal; the second one while it loads, when there is nothing to say yet."""
TARGETS = ("study", "cell", "server")
PATIENCE = 600.0
"""Seconds after which a process counts as hanging."""


@dataclass(frozen=True)
class Kill:
    """A signal that was sent.

    Attributes:
        target: `study`, `cell` or `server`.
        signum: which.
        lost: rounds of a cell that were done and are in no checkpoint, of the cell that has lost most.
    """

    target: str
    signum: signal.Signals
    lost: int


@dataclass(frozen=True)
class Setting:
    """Setting of the studies.

    Attributes:
        rounds: of a cell; also those of all cells between two kills, at most.
        columns: 1 or 2, of two cells each.
        devices: processes of a cell.
        cold: whether every process loads the libraries.
    """

    rounds: int = 100
    columns: int = 2
    devices: int = 1
    cold: bool = False


@dataclass
class Found:
    """Result of a study.

    Attributes:
        kills: of it and of its cells.
        wrong: what is not as it must be.
    """

    kills: list[Kill] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """End as many as were asked for; returns the exit code."""
    parser = seed_and_cold("kill.py study", __doc__)
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="of all studies; default 30")
    parser.add_argument("--each", type=int, default=6, metavar="N", help="of one study at most; default 6")
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="of each cell; default 100")
    parser.add_argument("--columns", type=int, default=2, choices=(1, 2), help="of two cells each; default 2")
    parser.add_argument("--devices", type=int, default=1, choices=(1, 2), help="processes of a cell; default 1")
    words = parser.parse_args(argv)
    if not words.cold:
        load_study()
    folder = Path(tempfile.mkdtemp(prefix="kill_study_"))
    setting = Setting(words.rounds, words.columns, words.devices, words.cold)
    seconds = leave_alone(folder / "reference", setting)
    print(f"left alone: {seconds:.1f} s", flush=True)
    all_found: list[Found] = []
    while (left := words.kills - sum(len(found.kills) for found in all_found)) > 0:
        number = len(all_found)
        draw = random.Random(f"{words.seed} {number}")
        found = end_again_and_again(folder / f"study-{number}", draw, min(words.each, left), setting)
        found.wrong += [] if found.wrong else compare(folder / f"study-{number}", folder / "reference", setting)
        all_found.append(found)
        print(f"study {number}: {describe(found)}", flush=True)
    print(f"\n{table_of(all_found).markdown()}")
    if any(found.wrong for found in all_found):
        print(f"\nwrong; the files are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def load_study() -> None:
    """Load what forks will use."""
    import torch

    import dfl_lightning.bench.study.command
    import dfl_lightning.bench.study.processes.running

    assert dfl_lightning.bench.study.command
    assert dfl_lightning.bench.study.processes.running
    load()
    fork_cells()
    torch.set_num_threads(1)  # a fork would wait for the threads that its parent had


# --- one study --------------------------------------------------------------------------------------------------------
def start(folder: Path, setting: Setting, *words: str) -> Run:
    """Start `dfl-study` in a folder."""
    folder.mkdir(exist_ok=True)
    text = STUDY.replace("ROUNDS", str(setting.rounds)).replace("DEVICES", str(setting.devices))
    text = text.replace("SECOND\n", f"{SECOND}\n" * (setting.columns > 1))
    (folder / "ended.yaml").write_text(text, encoding="utf-8")
    return Run([words[0], "ended.yaml", *words[1:]], folder, setting.cold, "study")


def leave_alone(folder: Path, setting: Setting) -> float:
    """Run a study without interruption.

    Returns:
        Its seconds.

    Raises:
        RuntimeError: it does not end well.
    """
    study = start(folder, setting, "run", "-j", "2")
    seconds = study.wait(PATIENCE)
    if study.code != 0:
        raise RuntimeError(f"the study that is left alone ends with {study.code}: {study.said}")
    return seconds


def end_again_and_again(folder: Path, draw: random.Random, most: int, setting: Setting) -> Found:
    """Start a study and end it or its cells at random moments, so many times at most; then let it end.

    Args:
        folder: where it works.
        draw: of the moments.
        most: kills.
        setting: how it is run.
    """
    found = Found()
    study = start(folder, setting, "run", "-j", "2")
    try:
        while len(found.kills) < most:
            target, signum = draw.choice(TARGETS), draw.choice(list(CODES))
            if not wait_for_a_moment(study, folder, draw, setting):
                break
            if target == "cell":
                found.kills += end_a_cell(study, signum, draw)
                continue
            if target == "server":
                found.kills += end_the_server(study, signum)
                continue
            send(study.pid, signum)
            study.wait(PATIENCE)
            wait_for_the_cells(folder)
            lost = max((rounds_lost(run) for run in runs(folder)), default=0)
            if study.code != 0:
                found.kills.append(Kill("study", signum, lost))
                found.wrong += judge(study, signum)
                study = start(folder, setting, "run", "-j", "2")
        study.wait(PATIENCE)
        if study.code != 0:
            found.wrong.append(f"at last it ends with {study.code}: {study.said[-500:]}")
    finally:
        study.end()
        wait_for_the_cells(folder)
    found.wrong += [f"{kill.lost} rounds are lost" for kill in found.kills if kill.lost > EVERY]
    return found


def wait_for_a_moment(study: Run, folder: Path, draw: random.Random, setting: Setting) -> bool:
    """Wait for some more rounds of all cells, or for some seconds, which may end while everything starts.

    Returns:
        Whether the study is there still.
    """
    by_rounds = draw.random() < 0.7
    until = sum(map(rounds_written, runs(folder))) + draw.randint(1, setting.rounds)
    end = time.monotonic() + (PATIENCE if by_rounds else draw.uniform(0, 12 if setting.cold else 3))
    while study.look() and time.monotonic() < end:
        if by_rounds and sum(map(rounds_written, runs(folder))) >= until:
            break
        time.sleep(0.01)
    return study.look()


def end_a_cell(study: Run, signum: signal.Signals, draw: random.Random) -> Iterator[Kill]:
    """Send a signal to one of the study's cells, if there is one, and look at what it has lost.

    The study is halted meanwhile: it would start the cell again.
    """
    send(study.pid, signal.SIGSTOP)
    try:
        cells = [(pid, log) for pid in cells_of(study.pid) if (log := log_of(pid)) is not None]
        if cells:
            pid, log = draw.choice(cells)
            send(pid, signum)
            end = time.monotonic() + PATIENCE
            while is_alive(pid) and time.monotonic() < end:
                time.sleep(0.01)
            lost = max((rounds_lost(run) for run in log.parent.glob("run/*")), default=0)
            yield Kill("cell", signum, lost)
    finally:
        send(study.pid, signal.SIGCONT)


def end_the_server(study: Run, signum: signal.Signals) -> Iterator[Kill]:
    """Send a signal to the study's server, if there is one; no round of a cell ends with it."""
    server = server_of(study.pid)
    if server is not None:
        send(server, signum)
        yield Kill("server", signum, 0)


def log_of(pid: int) -> Path | None:
    """Return the file that a cell prints into; None if it has just ended, or begun."""
    try:
        log = Path(os.readlink(PROC / str(pid) / "fd" / "1"))
    except OSError:
        return None
    return log if log.name == "log.txt" else None


def runs(folder: Path) -> list[Path]:
    """List the run folders of all cells."""
    return sorted(folder.glob("studies/ended/cells/*/run/*"))


def rounds_lost(run: Path) -> int:
    """Count rounds that are in no checkpoint; a saved round that waits for its evaluation has no row yet."""
    return max(0, rounds_written(run) - rounds_saved(run / "checkpoints" / "last.ckpt"))


def wait_for_the_cells(folder: Path) -> None:
    """Wait until cells whose study is gone have saved and ended by themselves."""
    end = time.monotonic() + PATIENCE
    while any(is_locked(cell) for cell in folder.glob("studies/ended/cells/*")):
        if time.monotonic() > end:
            raise RuntimeError(f"cells of {folder} are there {PATIENCE:.0f} s after their study has ended")
        time.sleep(0.02)


def judge(study: Run, signum: signal.Signals) -> Iterator[str]:
    """List what is wrong with the end of a study."""
    if study.code not in CODES[signum]:
        yield f"{signum.name}: exit code {study.code}: {study.said[-500:]}"
    sentences = [line for line in study.said.splitlines() if re.match("dfl-study: (?!note: )", line)]
    right = [f"dfl-study: stopped by {signum.name}; "] * ((study.code or 0) > 0)
    if len(sentences) != len(right) or any(not s.startswith(r) for s, r in zip(sentences, right, strict=True)):
        yield f"{signum.name}: it should say '{''.join(right)}' and nothing else: {study.said[-500:]}"
    if any(word in study.said for word in ("Traceback", "Error", "Exception", "failed:")):
        yield f"its message is not understood: {study.said[-500:]}"


# --- the end ----------------------------------------------------------------------------------------------------------
def compare(folder: Path, reference: Path, setting: Setting) -> Iterator[str]:
    """List the differences of the tables and of everything that the runs have written."""
    for words in (["--format", "csv"], []):
        printed, wanted = (table(place, setting, *words) for place in (folder, reference))
        if printed != wanted:
            yield f"the table is another one: {printed} and not {wanted}"
    our_runs, their_runs = runs(folder), runs(reference)
    our_names, their_names = ([run.parents[1].name for run in made] for made in (our_runs, their_runs))
    if our_names != their_names:
        yield f"the cells' runs are {our_names} and not {their_names}"
        return
    for ours, theirs in zip(our_runs, their_runs, strict=True):
        yield from list(differences(result(theirs), result(ours), theirs.parents[1].name))[:3]


def table(folder: Path, setting: Setting, *words: str) -> str:
    """Return the output of `dfl-study table`, without the date and the durations of cells.

    Raises:
        RuntimeError: it prints none.
    """
    run = start(folder, setting, "table", *words)
    run.wait(PATIENCE)
    if run.code != 0:
        raise RuntimeError(f"the table of {folder} ends with {run.code}: {run.said}")
    kept = [line.partition("Made: ")[0] for line in run.said.splitlines() if not line.startswith("- made: ")]
    return "\n".join(kept)


# --- what is printed --------------------------------------------------------------------------------------------------
def describe(found: Found) -> str:
    """Describe a study in a line."""
    kills = ", ".join(f"{kill.signum.name} of the {kill.target} ({kill.lost} lost)" for kill in found.kills)
    return f"{kills or 'no kills'}: {'; '.join(found.wrong) or 'identical'}"


def table_of(all_found: Sequence[Found]) -> Table:
    """Make a table by target and signal."""
    kills = [kill for found in all_found for kill in found.kills]
    made = Table("Studies that were ended and started again", ["ended", "by", "kills", "rounds lost"])
    for target, signum in sorted({(kill.target, kill.signum) for kill in kills}):
        lost = [kill.lost for kill in kills if (kill.target, kill.signum) == (target, signum)]
        made.rows.append([target, signum.name, str(len(lost)), str(max(lost))])
    same = sum(not found.wrong for found in all_found)
    made.notes += [
        f"{len(kills)} kills of {len(all_found)} studies; {same} ended as the one that was left alone",
        f"rounds lost: at most, of {EVERY} between checkpoints",
    ]
    return made
