"""The output of `dfl-study run`: a progress bar on a terminal, otherwise a line when a cell starts or ends."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from dfl_lightning.bench.study.cells.cell_state import CellState, state_of
from dfl_lightning.bench.study.plan import Cell
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.measures.validated import are_validated
from dfl_lightning.utils.words import as_time, counted
from dfl_lightning.utils.wrapping import wrapped

PERIOD = 1.0
"""Seconds between two updates of the progress bar."""


class Progress:
    """Display of the states of all cells, and of the time that is left.

    Args:
        cells: cells of the study, one for each folder.
        jobs: processes at a time.
        measure: number to show for a cell that is done; None: none.
    """

    def __init__(self, cells: Sequence[Cell], jobs: int, measure: Measure | None) -> None:
        self._jobs, self._measure, self._total = jobs, measure, len(cells)
        self._states = {cell.folder: state_of(cell) for cell in cells}
        self._rates = Rates(self._states.values())
        self._begun: dict[Path, tuple[float, int]] = {}
        self._starts: list[float] = []
        self._looked = 0.0
        console = Console()
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = (BarColumn(bar_width=24), TextColumn("{task.fields[about]}"))
            self._bar = Bar(*columns, console=console, auto_refresh=False)
            self._bar.start()
            self._task = self._bar.add_task("", total=max(1, sum(cell.rounds for cell in cells)), about="")

    def started(self, cell: Cell) -> None:
        """Record that a process has begun to work at a cell; print it unless there is a progress bar."""
        self._states[cell.folder] = state_of(cell)
        self._begun[cell.folder] = (time.monotonic(), self._states[cell.folder].rounds)
        if self._bar is None:
            done = self._states[cell.folder].rounds
            how = f"continues after {counted(done, 'round')}" if done else "starts"
            print(f"{cell.label}: {how}", flush=True)

    def ended(self, state: CellState) -> None:
        """Record that a process no longer works at a cell; print how it ended, next to a progress bar only failures."""
        self._states[state.cell.folder] = state
        begun, rounds = self._begun.pop(state.cell.folder, (0.0, -1))
        if rounds == 0 and state.seconds is not None:
            self._starts.append(max(0.0, time.monotonic() - begun - state.seconds))
        self._rates.learn(state)
        line = f"{state.cell.label}: {self._result_in_words(state)}"
        if self._bar is None:
            print(f"{line} · {self.counts()}", flush=True)
        elif state.why:
            self._bar.console.print(
                wrapped(line, self._bar.console.width), markup=False, highlight=False, soft_wrap=True
            )

    def show(self, working: Sequence[Cell], waiting: int) -> None:
        """Update the progress bar, at most once a second.

        Args:
            working: cells that run now.
            waiting: number of cells that have not started.
        """
        if self._bar is None or time.monotonic() < self._looked + PERIOD:
            return
        self._looked = time.monotonic()
        for cell in working:
            self._states[cell.folder] = state_of(cell)
        done = sum(state.rounds for state in self._states.values())
        self._bar.update(self._task, completed=done, about=self.counts())
        self._bar.refresh()

    def counts(self) -> str:
        """Describe how many cells are done, run or failed, and the time that is left, if known and a second or more."""
        counts = Counter(state.word for folder, state in self._states.items() if folder not in self._begun)
        parts = [f"{counts['done']}/{self._total} cells done", f"{len(self._begun) + counts['running']} running"]
        parts += [f"{counts[word]} {word}" for word in ("failed", "missing data") if counts[word] or word == "failed"]
        left = self._left()
        return " · ".join([*parts, *([f"{as_time(left)} left"] if left is not None and left >= 1 else [])])

    def stop(self) -> None:
        """Remove the progress bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _result_in_words(self, state: CellState) -> str:
        if not state.is_done:
            after = f" after {counted(state.rounds, 'round')}" if state.rounds else ""
            return f"{state.word}{after}{f': {state.why}' if state.why else ''}"
        measure = self._measure
        if measure is not None:
            measure = measure.where_validated(are_validated([state])).of_task(state.score)
        number = None if measure is None else state.number(measure)
        if measure is None or number is None:
            return "done"
        return f"done, {measure.text(number)}{measure.unit}"

    def _left(self) -> float | None:
        """Estimate the seconds until all cells are done, from the rounds and starts that are left; None if unknown."""
        start = sum(self._starts) / len(self._starts) if self._starts else 0.0
        now = time.monotonic()
        states = {**self._states, **{folder: state_of(self._states[folder].cell) for folder in self._begun}}
        running = [(states[folder], now - begun, rounds) for folder, (begun, rounds) in self._begun.items()]
        rates = self._rates.with_running(
            (state.cell, max(0.0, spent - (0.0 if rounds else start)), state.rounds - rounds)
            for state, spent, rounds in running
        )
        total = 0.0
        for folder, state in states.items():
            if state.is_done or (state.why and folder not in self._begun):
                continue
            rate = rates.of(state.cell)
            if rate is None:
                return None
            spent = now - self._begun[folder][0] if folder in self._begun else 0.0
            total += rate * max(0, state.cell.rounds - state.rounds) + max(0.0, start - spent)
        return total / self._jobs


class Rates:
    """Measured seconds per round, of each row and column, of each column, and of all cells.

    Args:
        states: cells to learn from; those that are not done are ignored.
    """

    def __init__(self, states: Iterable[CellState] = ()) -> None:
        self._sums: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for state in states:
            self.learn(state)

    def learn(self, state: CellState) -> None:
        """Add the time of a cell, if it is done."""
        if state.seconds is not None:
            self._add(state.cell, state.seconds, state.rounds)

    def with_running(self, running: Iterable[tuple[Cell, float, int]]) -> Rates:
        """Return a copy to which running cells are added, each with its seconds and rounds so far."""
        more = Rates()
        for key, (seconds, rounds) in self._sums.items():
            more._sums[key] = [seconds, rounds]
        for cell, seconds, rounds in running:
            if rounds > 0:
                more._add(cell, seconds, rounds)
        return more

    def exactly(self, row: str, column: str) -> float | None:
        """Return the measured seconds per round of a row and column; None if no round of it was measured."""
        seconds, rounds = self._sums.get((row, column), (0.0, 0.0))
        return seconds / rounds if rounds > 0 else None

    def of(self, cell: Cell) -> float | None:
        """Return the seconds per round of a cell's place, else of its column, else of all cells; None if unknown."""
        for key in ((cell.row, cell.column), (cell.column,), ()):
            seconds, rounds = self._sums.get(key, (0.0, 0.0))
            if rounds > 0:
                return seconds / rounds
        return None

    def _add(self, cell: Cell, seconds: float, rounds: float) -> None:
        for key in ((cell.row, cell.column), (cell.column,), ()):
            self._sums[key][0] += seconds
            self._sums[key][1] += rounds
