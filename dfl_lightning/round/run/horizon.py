"""The number of rounds of a run, and who computes with it: a schedule that ends with the run, for example."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dfl_lightning.utils.errors import UserError


class Horizon:
    """The number of rounds, and the names of the policies and objectives that have read it.

    A run that is continued to another number of rounds is the run that was planned with that number from the start,
    unless one of its policies computes with the number. Such a continuation is refused.

    Args:
        rounds: of the run; None where only a signal or early stopping ends it.
    """

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds
        self.readers: set[str] = set()
        self._begun_with: tuple[int | None, str] | None = None

    def notice(self, reader: object | None) -> None:
        """Remember who reads the number.

        Args:
            reader: a policy or objective; None: other code, whose reading changes no number of the run.

        Raises:
            UserError: the run was begun with another number.
        """
        if reader is not None:
            self.readers.add(type(reader).__name__)
            self._refuse()

    def continue_from(self, rounds: int | None, readers: Sequence[str], where: str) -> None:
        """Continue a run that was begun with a number of rounds.

        Args:
            rounds: with which it was begun.
            readers: names of those that had read it.
            where: what the run is called in a message.

        Raises:
            UserError: one of them computes with another number now.
        """
        self._begun_with = (rounds, where)
        self.readers |= set(readers)
        self._refuse()

    def _refuse(self) -> None:
        if self._begun_with is None or not self.readers or self._begun_with[0] == self.rounds:
            return
        before, where = self._begun_with
        raise UserError(
            f"{where}: {', '.join(sorted(self.readers))} computes with the number of rounds, which was {before} and is "
            f"{self.rounds} now, so that the first rounds would not be those of a run of {self.rounds}; set "
            f"trainer.max_rounds={before}, or begin a new run"
        )


def calling(parts: Sequence[object]) -> object | None:
    """Return the object among some in whose method this code runs; None where it is called by other code.

    Args:
        parts: policies and objectives.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        own = frame.f_locals.get("self")
        if own is not None and any(own is part for part in parts):
            return own
    return None
