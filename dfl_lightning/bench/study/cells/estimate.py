"""The estimates of `dfl-study run --explain`: cells, time, memory and disk, from a few rounds that are timed."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path

from dfl_lightning.bench.study.cells.cell_state import CellState, rows_of, state_of
from dfl_lightning.bench.study.cells.checking import lacking_data
from dfl_lightning.bench.study.cells.disk import Space, bytes_in, free_in, space_of
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell, threads_of_a_cell
from dfl_lightning.bench.study.cells.resolve import config_text
from dfl_lightning.bench.study.plan import Cell, Pair, Plan
from dfl_lightning.bench.study.processes.starting import Process, Start, Starter, start_python
from dfl_lightning.bench.study.progress import Rates
from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.cli.ending import ENDING, read_ending
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.words import about, counted

ENOUGH = 20.0
"""Seconds of the first round above which no second round is timed."""
PERIOD = 0.05
"""Seconds between two checks of a process."""
PATIENCE = 600.0
"""Seconds that the timing of a cell may take."""


@dataclass(frozen=True)
class Timing:
    """The measurements of a cell's first rounds.

    Attributes:
        seconds: of the last timed round, evaluation included; None: no round ended within `PATIENCE`.
        spent: processor seconds of that round, which other programs do not change; None: not known.
        memory: peak memory of the process in bytes, that of the libraries included; None: not known.
        space: estimated disk space of the finished cell; None: the run was stopped before its first checkpoint.
    """

    seconds: float | None
    spent: float | None = None
    memory: int | None = None
    space: Space | None = None


def explain(plan: Plan, jobs: int) -> Iterator[str]:
    """Estimate the time, memory and disk that a study takes, and yield the lines of a report.

    Args:
        plan: cells of the study.
        jobs: number of cells that run at a time.
    """
    study, cells = plan.study, plan.distinct()
    states = {cell.folder: state_of(cell) for cell in cells}
    words = Counter(state.word for state in states.values())
    at = ", ".join(f"{number} {word}" for word, number in words.items())
    sizes = {"row": study.rows, "column": study.columns, "seed": plan.seeds}
    by = ", ".join(counted(len(found), what) for what, found in sizes.items())
    yield f"{study.name}: {study.title}"
    yield f"{counted(len(cells), 'cell')} of {by}" + (f": {at}" if at else "")
    if plan.missing:
        lacks = dict.fromkeys(plan.missing.values())
        yield f"not in the library yet: {', '.join(lacks)}"
    lacking = lacking_data(plan)
    for sentence in dict.fromkeys(lacking.values()):
        yield f"missing data: {sentence}"
    here = [cell for cell in cells if cell.data not in lacking]
    if not here:
        yield "nothing can be run now"
        return
    threads = threads_of_a_cell(jobs)
    timings = time_rounds(here, Rates(states.values()), threads)
    rates = {key: timing.seconds for key, timing in timings.items()}
    spendings = {key: timing.spent or timing.seconds for key, timing in timings.items()}
    seconds, spent, marks = 0.0, 0.0, set()
    rows, columns = (
        min(most, max(map(len, (*names, "column")))) for most, names in ((24, study.rows), (20, study.columns))
    )
    heads = f"{'cells':>5} {'rounds':>6} {'s/round':>9} {'time':>12} {'of one core':>12}"
    yield f"{'row':{rows}} {'column':{columns}} {heads}"
    for row, column in study.pairs():
        left = [cell for cell in here if (cell.row, cell.column) == (row, column) and not states[cell.folder].is_done]
        if not left:
            continue
        rate, mark = estimated(row, column, rates)
        marks.add(mark)
        spending, _ = estimated(row, column, spendings)
        rounds = sum(cell.rounds - states[cell.folder].rounds for cell in left)
        seconds += rounds * (rate or 0.0)
        spent += rounds * (spending or 0.0)
        times = [about(rounds * each) if each is not None else "?" for each in (rate, spending)]
        each = "?" if rate is None else f"{mark}{rate:.2f}"
        names = f"{row[:rows]:{rows}} {column[:columns]:{columns}}"
        yield f"{names} {len(left):5} {left[0].rounds:6} {each:>9} {times[0]:>12} {times[1]:>12}"
    if any(rate is None for rate in rates.values()):
        yield f"?: no round ended within {PATIENCE:.0f} s, and it is not in the sum"
    if "~" in marks:
        yield "~: not timed itself; from the same row in another column and another row in the same column"
    alone = f"together {about(seconds)} with one cell at a time on {threads} thread{'s' * (threads > 1)}"
    several = f", {about(seconds / jobs)} with -j {jobs}" * (jobs > 1)
    yield f"{alone}{several}; {about(spent)} of one core, which do not depend on what else the machine does"
    memory = max((timing.memory or 0 for timing in timings.values()), default=0)
    if memory:
        yield f"memory of a cell: up to {size(memory)}, the libraries included; {jobs} at a time"
    if any(cell.config["model"].get("batch_growth") for cell in here):
        yield "model.batch_growth: rounds that were not timed have fewer and larger batches, which take more memory"
    if not all(states[cell.folder].is_done for cell in here):
        yield disk_needed([states[cell.folder] for cell in here], timings, jobs, plan.folder)


def disk_needed(states: Sequence[CellState], timings: Mapping[Pair, Timing], jobs: int, folder: Path) -> str:
    """Describe the disk space that the cells which are not done will take.

    Args:
        states: states of the cells whose data are there.
        timings: measurements by row and column.
        jobs: number of cells that run at a time.
        folder: folder of the study, on the disk that is used.
    """
    spaces = {place: timing.space for place, timing in timings.items() if timing.space}
    for state in states:
        if state.run is not None and (space := space_of(state.run, state.rounds, state.cell.rounds)):
            spaces[state.cell.row, state.cell.column] = space
    if not spaces:
        return "disk: not known, since no timed run came to a checkpoint"
    models = {place: float(space.models) for place, space in spaces.items()}
    tables = {place: float(space.tables) for place, space in spaces.items()}
    needed = without = largest = 0.0
    for state in states:
        if state.is_done:
            continue
        of_models, of_tables = (estimated(state.cell.row, state.cell.column, of)[0] or 0.0 for of in (models, tables))
        used = 0 if state.run is None else bytes_in(state.run)
        needed += max(0.0, of_models + of_tables - used)
        without += max(0.0, of_tables - used)
        largest = max(largest, of_models)
    running = 2 * largest * jobs  # a running cell keeps two checkpoints
    free = free_in(folder)
    short = "; that is too little" if needed + running / 2 > free else ""
    small = f"{size(without + running)} with --discard-models"
    return f"disk: {size(needed + running / 2)}, {small}; {size(free)} are free in {folder}{short}"


def estimated(row: str, column: str, rates: Mapping[Pair, float | None]) -> tuple[float | None, str]:
    """Estimate the seconds per round of a row and column; return them, and `~` unless the place was timed.

    The ratio of the costs of two rows is assumed to be the same in every column.

    Args:
        row: name of the row.
        column: name of the column.
        rates: seconds per round by row and column that were timed; None: not known.

    Examples:
        >>> rates = {("a", "x"): 2.0, ("b", "x"): 6.0, ("a", "y"): 1.0}
        >>> estimated("b", "y", rates), estimated("a", "y", rates)
        ((3.0, '~'), (1.0, ''))
    """
    if (row, column) in rates:
        return rates[row, column], ""
    for (other_row, other_column), rate in rates.items():
        in_row, in_column = rates.get((row, other_column)), rates.get((other_row, column))
        if rate and in_row and in_column:
            return in_row * in_column / rate, "~"
    column_rates = [rate for (_, timed_column), rate in rates.items() if timed_column == column and rate]
    return (sum(column_rates) / len(column_rates) if column_rates else None), "~"


def time_rounds(cells: list[Cell], known: Rates, threads: int) -> dict[Pair, Timing]:
    """Time every row in one column, and at least one row in every other column.

    Args:
        cells: cells whose data are there.
        known: rates of earlier runs, which are not timed again.
        threads: number of threads of a cell.
    """
    timings: dict[Pair, Timing] = {}
    first = cells[0].column
    rows, columns = set(), set()
    with Starter() as starter:
        for cell in sorted(cells, key=lambda cell: cell.column != first):  # the first column first, with all rows
            key = (cell.row, cell.column)
            rate = known.exactly(*key)
            if rate is not None:
                timings[key] = Timing(rate)
            elif cell.row not in rows or cell.column not in columns:
                timings[key] = time_cell(cell, threads, starter.start_when_ready)
            else:
                continue
            rows.add(cell.row)
            columns.add(cell.column)
    return timings


def time_cell(cell: Cell, threads: int, start: Start = start_python) -> Timing:
    """Run a cell's first rounds in a temporary folder, and measure them.

    Args:
        cell: cell to run.
        threads: number of threads of the process.
        start: function that starts the process.

    Raises:
        UserError: dfl-fit fails.
    """
    few = {"max_rounds": min(2, cell.rounds), "max_epochs": None, "checkpoint_every": 1, "callbacks": None}
    config = {**cell.config, "trainer": {**cell.config["trainer"], **few}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cell.yaml").write_text(config_text(config), encoding="utf-8")
        words = ["--config", str(folder / "cell.yaml"), f"--trainer.default_root_dir={folder}"]
        with open(folder / "log.txt", "wb") as log:
            environment = {**environment_of_a_cell(threads), ENDING: str(folder / "ending.json")}
            process = start(words, log, environment, None)
            try:
                watched = _watch(process, folder)
            finally:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
        seconds = _seconds(folder)
        if watched.code and not seconds:
            ending = read_ending(folder / "ending.json")
            raise UserError(f"{cell.label}: {'dfl-fit fails' if ending is None else ending.sentence}")
        spaces = [space_of(run, rows_of(run), cell.rounds) for run in folder.glob("cell/*")]
    return Timing(seconds[-1] if seconds else None, watched.spent, watched.memory, next(iter(spaces), None))


@dataclass
class Watched:
    """The measurements of a process.

    Attributes:
        memory: peak memory in bytes; None: not known.
        spent: processor seconds of its last round; None: not known.
        code: its exit code; 0 also if it was not measured until its end.
    """

    memory: int | None = None
    spent: float | None = None
    code: int = 0


def _watch(process: Process, folder: Path) -> Watched:
    """Measure a process until it ends, has run for long enough, or `PATIENCE` is over."""
    watched, until = Watched(), time.monotonic() + PATIENCE
    rows, before, now, saved = -1, 0.0, 0.0, False
    while (code := process.poll()) is None:
        with suppress(OSError, IndexError, ValueError):  # the system has no /proc, or the process has just ended
            about = Path(f"/proc/{process.pid}")
            lines = (about / "status").read_text().splitlines()
            watched.memory = 1024 * int(next((line for line in lines if line.startswith("VmHWM")), "").split()[1])
            user, system = (about / "stat").read_text().rpartition(")")[2].split()[11:13]
            now = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        done = _rows(folder)
        if done > rows:
            watched.spent, before, rows = (now - before if done > 0 else None), now, done
        if not saved and any(folder.glob(f"cell/*/{FOLDER}/{LAST}")):
            saved, before = True, now  # the first checkpoint does not count as part of the second round
        if time.monotonic() > until or (saved and sum(_seconds(folder)[:1]) > ENOUGH):
            return watched
        time.sleep(PERIOD)
    if _rows(folder) > rows:
        watched.spent = now - before
    watched.code = code
    return watched


def _rows(folder: Path) -> int:
    """Count the rounds in metrics.csv of the run below a folder; -1 if there is no such file yet."""
    tables = list(folder.glob("cell/*/metrics.csv"))
    return tables[0].read_bytes().count(b"\n") - 1 if tables else -1


def _seconds(folder: Path) -> list[float]:
    """Return the seconds of each finished round of the run below a folder."""
    tables = list(folder.glob("cell/*/metrics.csv"))
    if not tables:
        return []
    with open(tables[0], newline="", encoding="utf-8") as file:
        return [float(row["seconds"]) for row in DictReader(file) if row.get("seconds")]
