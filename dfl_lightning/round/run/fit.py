"""A fit of a module, which later fits compare themselves with."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref


class Fit:
    """The objects that take part in a fit. A later fit with the same objects continues it.

    Args:
        trainer: the trainer that runs the fit.
        datamodule: the clients' data.
        parts: policies, monitors, other callbacks that rounds change, and the objective.
    """

    def __init__(self, trainer: object, datamodule: object, parts: Sequence[object]) -> None:
        self._objects: list[ref[object]] = [ref(each) for each in (trainer, datamodule, *parts)]

    def continues(self, last: Fit | None) -> bool:
        """Return True if this fit has the same trainer, data and parts as the last one; None: there was no fit."""
        if last is None or len(last._objects) != len(self._objects):
            return False
        return all(mine() is its() for mine, its in zip(self._objects, last._objects, strict=True))
