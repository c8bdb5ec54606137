"""The number of rounds of a run, and the policies that compute with it, for example a schedule that ends with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dfl_lightning.utils.errors import UserError


class Horizon:
    """The number of rounds, and the names of the policies and objectives that have read it.

    If no policy or objective has read the number, a run may be continued to another number of rounds: it then equals a
    run that was planned with that number from the start. Otherwise such a continuation is refused.

    Args:
        rounds: number of rounds; None: only a signal or early stopping ends the run.
    """

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds
        self.readers: set[str] = set()
        self._begun_with: tuple[int | None, str] | None = None

    def notice(self, reader: object | None) -> None:
        """Record that a policy or objective reads the number.

        Args:
            reader: the policy or objective; None: other code, which does not compute results with the number.

        Raises:
            UserError: the run was begun with another number.
        """
        if reader is not None:
            self.readers.add(type(reader).__name__)
            self._refuse()

    def continue_from(self, rounds: int | None, readers: Sequence[str], where: str) -> None:
        """Continue a run that was begun with a number of rounds.

        Args:
            rounds: the number of rounds that the run was begun with.
            readers: names of the policies and objectives that had read it.
            where: name of the run in an error message.

        Raises:
            UserError: there are readers, and the number of rounds has changed.
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
    """Return the policy or objective among `parts` whose method called this code; None if other code did."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if caller is not None and any(caller is part for part in parts):
            return caller
    return None
