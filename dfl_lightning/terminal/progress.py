"""The progress of a run in the terminal: a banner, a line about the current round, and the final table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.terminal.framing import Framing
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import as_time

BAR, SHORT_BAR = 24, 10
"""Columns of the bar, in a terminal of 80 columns or more, and in a narrower one."""


def fitting(parts: Sequence[str], width: int) -> str:
    """Join as many of the first parts as fit on a line.

    Args:
        parts: in order of importance.
        width: of the line, in columns.

    Examples:
        >>> fitting(["0:19 left", "1.4 s/round", "test acc 92.1 %"], 25)
        '0:19 left · 1.4 s/round'
    """
    text = ""
    for part in parts:
        longer = f"{text} · {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


class RoundProgress(ProgressBar, Framing):
    """Progress over rounds: a bar in a terminal, plain lines elsewhere.

    If showing it fails, one warning says why, and the run continues without it. An output stream that cannot be written
    (an `OSError`) ends the command, as it ends any other program.

    Args:
        lines: about this many lines per run, if the output is not a terminal.
    """

    def __init__(self, lines: int = 10) -> None:
        super().__init__()
        self.lines = lines
        self._bar: Progress | None = None
        self._cohorts = ""
        self._quiet = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note that a fit begins, and keep the trainer as Lightning's bars do."""
        ProgressBar.setup(self, trainer, pl_module, stage)
        Framing.setup(self, trainer, pl_module, stage)

    def disable(self) -> None:
        """Print nothing from now on; Lightning calls it in all processes but the first."""
        self._quiet = True

    def enable(self) -> None:
        """Print again."""
        self._quiet = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the banner and, in a terminal, start the bar at the first round of this fit."""
        self._failed = False
        self._show_only(self._begin, trainer, pl_module)

    def _begin(self, trainer: RunTrainer, pl_module: RunModule) -> None:
        self._shown = (trainer, pl_module)
        self._first, self._started = pl_module.bank.boundary.round, time.perf_counter()
        self._total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        self._print_banner(trainer, pl_module)
        console = Console()
        if console.is_terminal:
            columns = (
                TextColumn("Round {task.fields[at]}"),
                BarColumn(bar_width=self._width_of_bar(console.width)),
                TextColumn("{task.fields[about]}"),
            )
            self._bar = Progress(*columns, console=console, transient=False, auto_refresh=False)
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self._total, at=self._at(self._first), about="", completed=self._first
            )

    def on_engine_progress(self, done: int, total: int) -> None:
        """Show in the bar how many cohorts have finished their local work."""
        if self._bar is not None:
            self._cohorts = f"cohorts {done}/{total}"
            self._show_only(self._show, *self._shown)

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Update the bar after a round, or print a line if it is due."""
        self._show_only(self._finish_round, trainer, module)

    def _finish_round(self, trainer: RunTrainer, module: RunModule) -> None:
        self._cohorts = ""
        done = module.bank.boundary.round
        if self._bar is not None:
            self._show(trainer, module)
        elif self._total is None or done == self._total or done % max(1, self._total // self.lines) == 0:
            print(f"round {self._at(done)} · {' · '.join(self._about(trainer, module))}", flush=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop the bar and leave it on the screen."""
        self._end_bar()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop the bar, so that the terminal is as before."""
        self._end_bar()

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        """Return no metrics: `_about` chooses what the line shows."""
        return {}

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        (self._bar.console.print if self._bar is not None else print)(*args, **kwargs)

    def _show(self, trainer: RunTrainer, module: RunModule) -> None:
        assert self._bar is not None
        done = module.bank.boundary.round
        parts = [part for part in (*self._about(trainer, module), self._cohorts) if part]
        width = self._bar.console.width
        about = fitting(parts, width - self._width_of_round() - self._width_of_bar(width) - 2)
        self._bar.update(self._task, completed=done, at=self._at(done), about=about)
        self._bar.refresh()

    def _width_of_round(self) -> int:
        return len(f"Round {self._at(self._total or 10**4)}")

    def _width_of_bar(self, width: int) -> int:
        return max(1, min(BAR if width >= 80 else SHORT_BAR, width - self._width_of_round() - 2))

    def _at(self, done: int) -> str:
        return f"{done}/{self._total}" if self._total is not None else str(done)

    def _about(self, trainer: RunTrainer, module: RunModule) -> list[str]:
        """List time left, pace, scores, neighbours and active clients, if known, the most important first."""
        boundary = module.bank.boundary
        ran = boundary.round - self._first
        parts = []
        if ran:
            pace = (time.perf_counter() - self._started) / ran
            if self._total is not None:
                parts.append(f"{as_time(pace * (self._total - boundary.round))} left")
            parts.append(f"{pace:.2g} s/round" if pace < 100 else f"{pace:.0f} s/round")
        score = Score.of(module.federation.task)
        for split, where in (("val", "val"), ("test", "test"), ("global_test", "global")):
            value = trainer.callback_metrics.get(f"{split}_{score.name}")
            if value is not None:
                parts.append(f"{where} {score.short} {score.text(float(value))}")
        if "neighbours" in boundary.metrics:
            parts.append(f"neighbours {boundary.metrics['neighbours']:.1f}")
        if boundary.metrics.get("active", module.federation.num_clients) < module.federation.num_clients:
            parts.append(f"{boundary.metrics['active']:.0f} active")
        return parts

    def _show_only(self, show: Callable[[RunTrainer, RunModule], None], trainer: RunTrainer, module: RunModule) -> None:
        """Call `show`, which prints something about the run, unless an earlier call has failed."""
        if self._quiet or self._failed:
            return
        with self._guard("the progress of the run", "the run continues, and its metrics.csv has the numbers"):
            show(trainer, module)

    def _end_bar(self) -> None:
        with self._guard("the progress bar", "nothing else of the run is affected"):
            self._stop()

    def _give_up(self) -> None:
        super()._give_up()
        with suppress(Exception):  # the bar itself may be what has failed
            self._stop()
        self._bar = None

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            sys.stdout.flush()
