"""The page of a run while it trains: written again every few rounds, and reloaded by the browser."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.writing import check_report, write_methods, write_report
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.reading import PAGE, Run
from dfl_lightning.runs.run_folder import RunFolder
from dfl_lightning.runs.summary import summarise
from dfl_lightning.terminal.framing import name_no_page
from dfl_lightning.terminal.observing import only_warns

if TYPE_CHECKING:
    from pathlib import Path

SHARE = 0.05
"""Largest share of the time that is spent on pages, without the first page, which imports the libraries that draw."""

LEAST_GAP = 2.0
"""Least number of seconds between two pages."""


class RunningRun(Run):
    """A run that is still training: its tables come from memory, so that no file has to be written for a page.

    Args:
        folder: the run folder, which holds the rounds so far in memory.
        summary: content that `summary.json` would have now.
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
    """Callback that writes the run's page every few rounds, and once more when the run ends or fails.

    A page is written after a round if writing the last one took less than `SHARE` of the time since then. A browser
    that shows the page reloads it and keeps the round, client, theme and scroll position. If a page cannot be written,
    the run continues: one warning gives the reason, and the page is tried once more when the run ends.

    Attributes:
        seconds: seconds that each page took.
    """

    reads_run_folder = True

    def __init__(self) -> None:
        check_report()
        self.seconds: list[float] = []
        self._next = 0.0
        self._failed = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Reset the times; the first page is written after the first round."""
        self.seconds, self._next, self._failed = [], 0.0, False
        name_no_page(trainer.callbacks)  # the page exists when the last lines are printed

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Write the page after a round, if enough time has passed since the last one."""
        folder = trainer.run_folder
        if folder is None or folder.path is None or not trainer.is_global_zero or self._failed:
            return
        began = time.perf_counter()
        if began < self._next:
            return
        later = f"the run continues without it, and dfl-report {shlex.quote(str(folder.path))} makes it"
        with only_warns("the page of the run", later, self._stop_writing):
            run = RunningRun(folder, summarise(trainer, module, "running"))
            write_methods(find_methods([run]), _page(folder), following=self._gap)
            if not self.seconds:
                self._print(trainer, f"page: {_page(folder)} (open it in a browser, it follows the run)")
            self.seconds.append(time.perf_counter() - began)
        self._next = time.perf_counter() + self._gap

    def _stop_writing(self) -> None:
        self._failed = True

    @property
    def _gap(self) -> float:
        """Seconds until the next page, computed from the time that the last one took."""
        return max(LEAST_GAP, self.seconds[-1] / SHARE if len(self.seconds) > 1 else 0.0)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the last page from the run's files."""
        self._write_last_page(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the last page of a run that was stopped or failed, if it has a page already."""
        if self.seconds:
            self._write_last_page(trainer)

    def _write_last_page(self, trainer: RunTrainer) -> None:
        folder = trainer.run_folder
        if folder is None or folder.path is None or not trainer.is_global_zero:
            return
        again = f"dfl-report {shlex.quote(str(folder.path))} makes it again"
        with only_warns("the last page of the run", f"the other files of the run are not affected, and {again}"):
            write_report([folder.path])

    def _print(self, trainer: Any, sentence: str) -> None:
        """Print a line, above the progress bar if there is one."""
        bar = trainer.progress_bar_callback
        if bar is None:
            print(sentence, file=sys.stderr, flush=True)
        else:
            bar.print(sentence)


def _page(folder: RunFolder) -> Path:
    assert folder.path is not None
    return folder.path / PAGE
