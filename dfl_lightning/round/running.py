"""Around a hook of a round: policies write what is theirs, monitors nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.running_hook import CHANGES_NOTHING, RunningHook
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.ledger import Ledger
from dfl_lightning.utils.randomness.global_generators import name_of


class _Watched(Protocol):
    """A round, as what a monitor leaves alone: a dataclass with a ledger and data."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    ledger: Ledger

    @property
    def data(self) -> object:
        """The clients' resident data."""


UNWATCHED = ("federation", "metrics", "ledger")
"""Fields of a round that a monitor may change (`log`), or that have means of their own."""


@contextmanager
def running(bank: Bank, who: object, hook: str, watches: bool = False, round: _Watched | None = None) -> Iterator[None]:
    """Inside, a hook runs: the bank knows whose it is, and refuses what the hook may not write.

    For a monitor the ledger counts nothing, and what the round and the bank hold is afterwards what it was before.

    Args:
        bank: the clients' models.
        who: the policy, monitor or objective.
        hook: its method.
        watches: whether it is a monitor.
        round: that the hook gets, or None.

    Raises:
        UserError: it wrote into rows of before the round, or a monitor has changed something.
    """
    former, bank.hook = bank.hook, RunningHook(bank.boundary.round, name_of(who), hook, watches)
    written_before = bank.written_in_place()
    before = Unchanged(bank, round) if watches else None
    try:
        with nullcontext() if round is None or not watches else round.ledger.paused():
            yield
        name = bank.written_in_place()
        if name is not None and written_before is None:
            remedy = (
                CHANGES_NOTHING
                if watches
                else "write their next state: round.mix(..., into=NAME) or bank.next_of(NAME)"
            )
            raise bank.hook.refusal(f"writes into the rows '{name}' of before the round", remedy)
        changed = None if before is None else before.changed()
        if changed is not None:
            raise bank.hook.refusal(f"changes {changed}", CHANGES_NOTHING)
    finally:
        bank.hook = former


class Unchanged:
    """What a round and the bank hold when a monitor begins, to be compared with what they hold when it ends.

    No numbers are read: torch counts the writes into each tensor (but for those through `.data` and `.numpy()`).

    Args:
        bank: the clients' models.
        round: or None.
    """

    def __init__(self, bank: Bank, round: _Watched | None) -> None:
        self._bank, self._round = bank, round
        self._before = self._now()

    def changed(self) -> str | None:
        """The first thing that is another one than before, in words; None: nothing is."""
        now = self._now()
        return next((name for name in now if name not in self._before or now[name] != self._before[name]), None)

    def _now(self) -> dict[str, object]:
        found = {f"the row set '{name}'": _seen(rows) for name, rows in self._bank.sets_of_the_round().items()}
        if self._round is None:
            return found
        held = vars(self._round)
        names = [one.name for one in fields(self._round) if one.name in held and one.name not in UNWATCHED]
        found |= {f"round.{name}": _seen(held[name]) for name in names}
        data = self._round.data
        return found | {f"round.data.{name}": _seen(getattr(data, name)) for name in ("images", "labels")}


class _Same:
    """An object, to be compared by identity."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing


class _SameLinks(_Same):
    """A list of links: what it once worked out is the same later; it may have worked out more."""

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        self.parts = {name: _seen(part) for name, part in vars(links).items()}

    def __eq__(self, before: object) -> bool:
        return (
            isinstance(before, _SameLinks)
            and before.thing is self.thing
            and all(self.parts.get(name) == part for name, part in before.parts.items())
        )


def _seen(value: Any) -> object:
    """A field of a round, to be compared with the same field later."""
    if isinstance(value, Tensor):
        return [_Same(value), 0 if value.is_inference() else value._version]  # `inference_mode` counts no writes
    if isinstance(value, Links):
        return _SameLinks(value)
    if isinstance(value, LinkMemory):
        return [_seen(value.links), _seen(value.values)]
    if isinstance(value, Mapping):
        return {key: _seen(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_seen(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _seen(getattr(value, one.name)) for one in fields(value)}
    return value if isinstance(value, int | float | str | None) else _Same(value)
