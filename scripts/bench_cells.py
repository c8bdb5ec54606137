"""Cells of a study in a minute: each a new Python, and as forks of one that has imported the libraries.

    python scripts/bench_cells.py                          # 6 cells of one round, one at a time; three turns
    python scripts/bench_cells.py --cells 20 --jobs 2

The cells are as small as cells can be (digits, 6 clients, one round), so that nearly all of their time is their start
and end. Both ways take turns. A cell's seconds of the processor are those of all processes that the study starts but
its server, divided by the cells; those of the server, which imports once for a study, are listed apart. Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.tables import Table
from benchmarks.timing import Others

from dfl_lightning.bench.study.cells.cell_process import CellProcess
from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import Cell, make_plan
from dfl_lightning.bench.study.processes.running import Stops, run_cells
from dfl_lightning.bench.study.processes.starting import FORK, Starter
from dfl_lightning.bench.study.progress import Progress
from dfl_lightning.utils.cores import cores

STUDY = """\
# Cells that take nothing but their start
name: starts
base:
  trainer: {max_rounds: 1, accelerator: cpu}
  model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
  data: {class_path: Digits, init_args: {num_clients: 6, samples_per_client: 30, partition: IID}}
  selection: {class_path: Gossip, init_args: {k: 2}}
rows: {Gossip: {}}
columns: {digits: {}}
seeds: SEEDS
score: last
"""
WAYS = {"new Pythons": "0", "forks": "1"}
"""Values of the environment variable for each way."""


@dataclass(frozen=True)
class Taken:
    """Time that cells took together.

    Attributes:
        wall: seconds from the start of the first to the end of the last, those of the server included.
        spent: seconds of the processor, of all processes.
        server: those of the server alone, until it could start the first.
        first: those of a single cell's process until its first round is in its table.
    """

    wall: float
    spent: float
    server: float
    first: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both ways; returns the exit code."""
    words = make_parser().parse_args(argv)
    if sys.platform != "linux":
        print("bench_cells: cells are forked on Linux only", file=sys.stderr)
        return 2
    taken: dict[str, list[Taken]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        cells = cells_of(Path(name), words.cells + 1)
        others = Others()
        for turn in range(words.turns):
            for way in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
                moved = [replace(cell, folder=Path(name, f"{turn}-{way}", cell.folder.name)) for cell in cells]
                taken[way].append(run(moved, words.jobs, way))
                print(f"turn {turn + 1}, {way}: {taken[way][-1].wall:.1f} s", file=sys.stderr, flush=True)
        share = others.share()
    print(table(taken, words.cells, words.jobs, share).markdown())
    return 0


def cells_of(folder: Path, number: int) -> list[Cell]:
    """Plan the given number of cells, one for each seed."""
    file = folder / "starts.yaml"
    file.write_text(STUDY.replace("SEEDS", str(list(range(number)))), encoding="utf-8")
    return make_plan(read_study_file(str(file)), folder / "starts").distinct()


def run(cells: Sequence[Cell], jobs: int, way: str) -> Taken:
    """Run all cells but the first, `jobs` at a time; then run the first and measure the time until its first round.

    Raises:
        RuntimeError: one of them is not done at the end.
    """
    os.environ[FORK] = WAYS[way]
    begun, spent = time.perf_counter(), _spent_by_children()
    with Starter() as starter, Stops() as stops, contextlib.redirect_stdout(io.StringIO()):
        while not starter.is_ready(environment_of_a_cell(max(1, cores() // jobs))):
            time.sleep(0.01)
        server = sum(map(_spent_by, _children()))
        run_cells(cells[1:], jobs, Progress(cells[1:], jobs, None), stops, starter)
        wall = time.perf_counter() - begun
        first = until_the_first_round(CellProcess(cells[0], max(1, cores() // jobs), start=starter.start))
    taken = Taken(wall, _spent_by_children() - spent, server, first)
    for cell in cells:
        if not (state := state_of(cell)).is_done:
            raise RuntimeError(f"{cell.label}: {state.word}: {state.why}")
    return taken


def until_the_first_round(process: CellProcess) -> float:
    """Wait for a cell; return the CPU seconds of its process until its first round is in its table."""
    first = spent = 0.0
    while not process.is_over(stopping=False):
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            spent = _spent_by(process.pid)
        if not first and state_of(process.cell).rounds:
            first = spent
        time.sleep(0.01)
    return first or spent


def table(taken: dict[str, list[Taken]], number: int, jobs: int, others: float | None) -> Table:
    """Make a table of medians over the turns.

    Args:
        taken: by way.
        number: of cells.
        jobs: cells at a time.
        others: share of the processors that were busy, with the measured processes.

    Examples:
        >>> taken = {"new Pythons": [Taken(30.0, 42.0, 0.0, 5.5)], "forks": [Taken(12.0, 14.0, 7.0, 0.8)]}
        >>> print(table(taken, 6, 1, None).markdown())
        ### 6 cells of one round, 1 at a time
        <BLANKLINE>
        | cells are   | cells a minute | CPU s of a cell | CPU s until its first round |
        |-------------|----------------|-----------------|-----------------------------|
        | new Pythons | 12.0           | 6.00            | 5.50                        |
        | forks       | 30.0           | 1.00            | 0.80                        |
        <BLANKLINE>
        - forks / new Pythons: cells a minute 2.50, CPU of a cell 1 / 6.00, until its first round 1 / 6.88
        - the server: 7.0 s of CPU once for a study, which count in the cells a minute
    """
    made = Table(
        f"{number} cells of one round, {jobs} at a time",
        ["cells are", "cells a minute", "CPU s of a cell", "CPU s until its first round"],
    )
    for way, all_taken in taken.items():
        made.rows.append(
            [
                way,
                f"{60 * number / statistics.median(one.wall for one in all_taken):.1f}",
                f"{statistics.median(one.spent - one.server for one in all_taken) / (number + 1):.2f}",
                f"{statistics.median(one.first for one in all_taken):.2f}",
            ]
        )
    pairs = list(zip(taken["new Pythons"], taken["forks"], strict=True))
    wall = statistics.median(plain.wall / fork.wall for plain, fork in pairs)
    spent = statistics.median(plain.spent / (fork.spent - fork.server) for plain, fork in pairs)
    first = statistics.median(plain.first / fork.first for plain, fork in pairs)
    server = statistics.median(fork.server for _, fork in pairs)
    made.notes += [
        f"forks / new Pythons: cells a minute {wall:.2f}, CPU of a cell 1 / {spent:.2f}, "
        f"until its first round 1 / {first:.2f}",
        f"the server: {server:.1f} s of CPU once for a study, which count in the cells a minute",
    ]
    if others is not None:
        made.notes.append(f"busy processors: {100 * others:.0f} %, with the processes that were measured")
    return made


def _spent_by_children() -> float:
    """Return the CPU seconds of all ended child processes, including their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _children() -> list[int]:
    """List the child processes of this process."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(number) for file in files for number in file.read_text().split()]


def _spent_by(pid: int) -> float:
    """Return the CPU seconds of a running process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=6, metavar="N", help="of a study (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each way (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
