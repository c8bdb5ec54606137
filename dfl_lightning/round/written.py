"""Fields of a round that have no value until a hook writes them; an early read raises an error that names the hook."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast, overload

from dfl_lightning.bank.bank import Bank
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round


class _OfRound(Protocol):
    """The attributes of a round that a field uses."""

    index: int

    @property
    def bank(self) -> Bank:
        """The clients' models."""


T = TypeVar("T")

NOT_WRITTEN: Any = object()
"""The value of a field in a new round."""


class Written(Generic[T]):
    """A field that has no value until a hook writes it; `round.has(name)` tells whether it has one.

    Args:
        by: the writer of the field: a hook's name, or a step of the round.
    """

    def __init__(self, by: str) -> None:
        self.by = by

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, round: None, owner: type) -> T: ...
    @overload
    def __get__(self, round: _OfRound, owner: type) -> T: ...
    def __get__(self, round: _OfRound | None, owner: type) -> T:
        if round is None:
            return cast("T", NOT_WRITTEN)  # the default of the dataclass
        try:
            return cast("T", vars(round)[self.name])
        except KeyError:
            raise self._too_early(round) from None

    def __set__(self, round: _OfRound, value: T) -> None:
        if value is NOT_WRITTEN or value is None:
            vars(round).pop(self.name, None)
        else:
            vars(round)[self.name] = value

    def _too_early(self, round: _OfRound) -> UserError:
        hook = round.bank.hook
        remedy = f"it is written by {self.by}, which has not happened yet; test round.has('{self.name}') first"
        if hook is None:
            return UserError(f"{nth_round(round.index)}: round.{self.name} is read, but {remedy}")
        return hook.refusal(f"reads round.{self.name}", remedy)
