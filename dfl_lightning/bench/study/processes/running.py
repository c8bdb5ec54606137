"""The loop of `dfl-study run`: it runs the cells that are not done, a number at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from dfl_lightning.bench.study.cells.cell_process import CellProcess, Taken
from dfl_lightning.bench.study.cells.cell_state import FAILURE, state_of
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell, threads_of_a_cell
from dfl_lightning.bench.study.plan import Cell
from dfl_lightning.bench.study.processes.starting import Starter
from dfl_lightning.bench.study.progress import Progress

PERIOD = 0.2
"""Seconds between two checks of the processes."""
PERIOD_OF_OTHERS = 3.0
"""Seconds between two checks of a cell that another study works at."""


class Stops:
    """Handler of Ctrl-C and SIGTERM while cells run.

    Attributes:
        signum: the first signal that was received; 0: none.
        times: number of signals that were received.
    """

    def __init__(self) -> None:
        self.signum, self.times = 0, 0

    def __enter__(self) -> Stops:
        self._before = {number: signal.signal(number, self._record) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> Any:
        self.signum = self.signum or number
        self.times += 1


def run_cells(cells: Sequence[Cell], jobs: int, progress: Progress, stops: Stops, starter: Starter) -> None:
    """Run cells until each is done, has failed, or is stopped.

    Args:
        cells: cells in the order in which to start them; those that are done are skipped.
        jobs: processes at a time; the machine's cores are divided among them, unless `OMP_NUM_THREADS` is set.
        progress: display that receives what happens.
        stops: signals; the first one lets the processes save and end, the second one kills them.
        starter: starter of the processes.
    """
    threads = threads_of_a_cell(jobs)
    environment = environment_of_a_cell(threads)
    queue = _Queue(cells)
    working: list[CellProcess] = []
    handled = 0
    try:
        while working or (queue.cells and not stops.signum):
            if stops.times > handled:
                handled = stops.times
                for process in working:
                    process.stop() if handled == 1 else process.kill()
            for process in list(working):
                if process.is_over(stopping=bool(stops.signum)):
                    working.remove(process)
                    progress.ended(state_of(process.cell))
            while len(working) < jobs and queue.cells and not stops.signum and starter.is_ready(environment):
                cell = queue.next(progress)
                if cell is None:
                    break
                try:
                    working.append(CellProcess(cell, threads, start=starter.start))
                    progress.started(cell)
                except Taken:
                    queue.put_off(cell)
            progress.show([process.cell for process in working], len(queue.cells))
            time.sleep(PERIOD)
    finally:
        for process in working:  # only after an error, for example if the disk is full
            process.stop()


class _Queue:
    """The cells that are not done yet, in the order in which to start them."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = list(cells)
        self._failures = {cell.folder: _time_of_failure(cell) for cell in cells}
        self._until: dict[Any, float] = {}

    def next(self, progress: Progress) -> Cell | None:
        """Remove and return a cell to work at; None if there is none now.

        Cells that another study has finished, or has seen fail since, are removed too.
        """
        for cell in list(self.cells):
            if time.monotonic() < self._until.get(cell.folder, 0.0):
                continue
            state = state_of(cell)
            if state.is_done or _time_of_failure(cell) > self._failures[cell.folder]:
                self.cells.remove(cell)
                progress.ended(state)  # another study has worked at it
                continue
            self.cells.remove(cell)
            return cell
        return None

    def put_off(self, cell: Cell) -> None:
        """Add a cell again that another process works at, and check it later."""
        self.cells.append(cell)
        self._until[cell.folder] = time.monotonic() + PERIOD_OF_OTHERS


def _time_of_failure(cell: Cell) -> float:
    file = cell.folder / FAILURE
    return file.stat().st_mtime if file.is_file() else 0.0
