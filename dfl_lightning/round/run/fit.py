"""A fit of a module, to be recognised by later fits."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref


class Fit:
    """A fit of a module, by which a later one is recognised as its continuation.

    Args:
        trainer: the trainer that runs it.
        datamodule: the clients' data.
        parts: policies, monitors, other callbacks that rounds change, and the objective.
    """

    def __init__(self, trainer: object, datamodule: object, parts: Sequence[object]) -> None:
        self._objects: list[ref[object]] = [ref(each) for each in (trainer, datamodule, *parts)]

    def continues(self, last: Fit | None) -> bool:
        """Return True if this fit has the trainer, the data and the parts of an earlier one.

        Args:
            last: the module's last fit; None: it had none.
        """
        if last is None or len(last._objects) != len(self._objects):
            return False
        return all(mine() is its() for mine, its in zip(self._objects, last._objects, strict=True))
