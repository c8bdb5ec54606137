"""The page of a run while it trains: written anew every few rounds, and followed by the browser."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.writing import check_report, write_methods, write_report
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.hosts import RunModule, RunTrainer
from dfl_lightning.runs.reading import Run
from dfl_lightning.runs.run_folder import PAGE, RunFolder
from dfl_lightning.runs.summary import summarise
from dfl_lightning.terminal.observing import only_warns
from dfl_lightning.terminal.progress import RoundProgress

if TYPE_CHECKING:
    from pathlib import Path

SHARE = 0.05
"""Of the time, for pages at most; the first page, which loads what draws, is not counted."""

LEAST_GAP = 2.0
"""Seconds between two pages, at least."""


class RunningRun(Run):
    """A run that lasts: its tables come from memory, so that nothing has to be written for a page.

    Args:
        folder: of the run, which holds its rounds.
        summary: what `summary.json` would hold now.
    """

    def __init__(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        assert folder.path is not None
        super().__init__(folder.path)
        self._folder, self.__dict__["summary"] = folder, summary

    def _table(self, name: str) -> dict[str, np.ndarray]:
        if name not in self._read and hasattr(RunFolder, name):
            self._read[name] = self._folder._table(name)
        return super()._table(name)


class LivePage(RoundCallback):
    """Writes the run's page every few rounds, and once more when the run ends, however it ends.

    A page is written after a round when the last one has taken less than `SHARE` of the time since then. A browser
    that has it open loads it anew and keeps its round, client, theme and place. A page that fails, whatever the
    reason, does not end the run: one warning says why, and the page is tried once more when the run ends.

    Attributes:
        seconds: that pages took, each.
    """

    reads_run_folder = True

    def __init__(self) -> None:
        check_report()
        self.seconds: list[float] = []
        self._next = 0.0
        self._failed = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew: the first page follows the first round."""
        self.seconds, self._next, self._failed = [], 0.0, False
        bar = trainer.progress_bar_callback
        if isinstance(bar, RoundProgress):
            bar.page_follows = True  # its last lines name no command that makes the page

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Write the page if it is time for one, a round being done."""
        folder = trainer.run_folder
        if folder is None or folder.path is None or not trainer.is_global_zero or self._failed:
            return
        began = time.perf_counter()
        if began < self._next:
            return
        later = f"the run continues without it, and dfl-report {shlex.quote(str(folder.path))} makes it"
        with only_warns("the page of the run", later, self._give_up):
            run = RunningRun(folder, summarise(trainer, module, "running"))
            write_methods(find_methods([run]), _page(folder), following=self._gap)
            if not self.seconds:
                self._say(trainer, f"page: {_page(folder)} (open it in a browser, it follows the run)")
            self.seconds.append(time.perf_counter() - began)
        self._next = time.perf_counter() + self._gap

    def _give_up(self) -> None:
        self._failed = True

    @property
    def _gap(self) -> float:
        """Seconds until the next page, from what the last one took."""
        return max(LEAST_GAP, self.seconds[-1] / SHARE if len(self.seconds) > 1 else 0.0)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the last page, from the run's files."""
        self._last(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the page of a run that was stopped or has failed, where one was written before."""
        if self.seconds:
            self._last(trainer)

    def _last(self, trainer: RunTrainer) -> None:
        folder = trainer.run_folder
        if folder is None or folder.path is None or not trainer.is_global_zero:
            return
        again = f"dfl-report {shlex.quote(str(folder.path))} makes it again"
        with only_warns("the last page of the run", f"the other files of the run are not affected, and {again}"):
            write_report([folder.path])

    def _say(self, trainer: Any, sentence: str) -> None:
        bar = trainer.progress_bar_callback
        if bar is None:
            print(sentence, file=sys.stderr, flush=True)
        else:
            bar.print(sentence)


def _page(folder: RunFolder) -> Path:
    assert folder.path is not None
    return folder.path / PAGE
