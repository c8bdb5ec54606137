"""The lines before and after the rounds of a run: the banner with its notes, the result, the run folder, the page."""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager
from typing import Any

from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.summary import final_table
from dfl_lightning.terminal.banner import banner
from dfl_lightning.terminal.observing import only_warns
from dfl_lightning.utils.wrapping import for_terminal

LARGE = 1_000_000
"""Parameters of a network from which its set-up takes so long that a line says so."""


class Framing(RoundCallback):
    """The banner before the first round and the result after the last one; for runs with a progress bar of Lightning.

    If printing fails, one warning says why, and the run continues. An output stream that cannot be written (an
    `OSError`) ends the command, as it ends any other program.

    Attributes:
        page_follows: True if another callback writes and names the run's page, so that the final table does not name
            the command that makes it.
    """

    page_follows = False
    _failed = _begins = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note that a fit begins, which `announce` may say."""
        self._begins = stage == "fit" and trainer.is_global_zero

    def announce(self, network: str, parameters: int) -> None:
        """Print a line before a large network is set up, since the banner comes after that.

        Args:
            network: name of the network.
            parameters: number of its parameters.
        """
        if self._begins and parameters >= LARGE:
            print(f"setting up {network} ({parameters:,} parameters each): a large network takes a while", flush=True)
        self._begins = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the banner."""
        self._failed = False
        if trainer.is_global_zero:
            with self._guard("the banner", "the run continues"):
                self._print_banner(trainer, pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the final table, the run folder, and the command that makes the run's page."""
        if not trainer.is_global_zero or trainer.run_folder is None or not trainer.run.summary:
            return
        with self._guard("the final table", "the run is finished, and its summary.json has the numbers"):
            print("", *final_table(trainer.run.summary), sep="\n", flush=True)
        print(f"run: {trainer.run.path}", flush=True)
        if not self.page_follows:
            print(f"its page: {shlex.join(['dfl-report', str(trainer.run.path)])}", flush=True)

    def _print_banner(self, trainer: RunTrainer, module: RunModule) -> None:
        for line in banner(trainer, module):
            print(for_terminal(line, sys.stdout), flush=True)

    def _guard(self, what: str, remedy: str) -> AbstractContextManager[None]:
        """Turn errors of the block into one warning, except those of the output stream, which end the command."""
        return only_warns(what, remedy, self._give_up, but=(OSError,))

    def _give_up(self) -> None:
        self._failed = True


def announce_set_up(callbacks: list[Any], network: object, parameters: int) -> None:
    """Let the run say that it is being set up, if that takes long; see `Framing.announce`.

    Args:
        callbacks: those of the trainer.
        network: the plain network.
        parameters: number of its parameters.
    """
    for callback in callbacks:
        if isinstance(callback, Framing):
            callback.announce(type(network).__name__, parameters)


def name_no_page(callbacks: list[Any]) -> None:
    """Let the final lines leave out the command that makes the page, since another callback writes the page.

    Args:
        callbacks: those of the trainer.
    """
    for callback in callbacks:
        if isinstance(callback, Framing):
            callback.page_follows = True
