"""Guards around the hooks of a round: a policy writes only its own row sets, and a monitor changes nothing."""

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
    """The attributes of a round that are compared before and after a monitor's hook."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    ledger: Ledger

    @property
    def data(self) -> object:
        """The clients' resident data."""


UNWATCHED = ("federation", "metrics", "ledger")
"""Fields of a round that a monitor may change (by `log`), or that are protected in other ways."""


@contextmanager
def guard_hook(
    bank: Bank, who: object, hook: str, watches: bool = False, round: _Watched | None = None
) -> Iterator[None]:
    """Record the hook that runs inside, so that the bank can refuse writes that the hook may not make.

    While a monitor's hook runs, the ledger counts nothing; afterwards the round and the bank must be unchanged.

    Args:
        bank: the clients' models.
        who: the policy, monitor or objective.
        hook: name of its method.
        watches: True for a monitor.
        round: the round that the hook gets; None: it gets no round.

    Raises:
        UserError: the hook wrote into the rows of the last boundary, or it is a monitor's and has changed something.
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
    """A snapshot of a round and the bank at the start of a monitor's hook, to be compared with their state at its end.

    No numbers are read: torch counts the writes into each tensor (except those through `.data` and `.numpy()`).

    Args:
        bank: the clients' models.
        round: the round that the hook gets; None: it gets no round.
    """

    def __init__(self, bank: Bank, round: _Watched | None) -> None:
        self._bank, self._round = bank, round
        self._before = self._now()

    def changed(self) -> str | None:
        """Describe the first field or row set that has changed since the snapshot; None: nothing has."""
        now = self._now()
        return next((name for name in now if name not in self._before or now[name] != self._before[name]), None)

    def _now(self) -> dict[str, object]:
        state = {f"the row set '{name}'": _comparable(rows) for name, rows in self._bank.sets_of_the_round().items()}
        if self._round is None:
            return state
        values = vars(self._round)
        names = [one.name for one in fields(self._round) if one.name in values and one.name not in UNWATCHED]
        state |= {f"round.{name}": _comparable(values[name]) for name in names}
        data = self._round.data
        return state | {f"round.data.{name}": _comparable(getattr(data, name)) for name in ("images", "labels")}


class _Same:
    """An object that is compared by identity."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing


class _SameLinks(_Same):
    """A list of links. It counts as unchanged if it has cached further results in the meantime."""

    def __init__(self, links: Links) -> None:
        super().__init__(links)
        self.parts = {name: _comparable(part) for name, part in vars(links).items()}

    def __eq__(self, before: object) -> bool:
        return (
            isinstance(before, _SameLinks)
            and before.thing is self.thing
            and all(self.parts.get(name) == part for name, part in before.parts.items())
        )


def _comparable(value: Any) -> object:
    """Convert a field of a round into an object that can be compared with the same field later."""
    if isinstance(value, Tensor):
        return [_Same(value), 0 if value.is_inference() else value._version]  # `inference_mode` counts no writes
    if isinstance(value, Links):
        return _SameLinks(value)
    if isinstance(value, LinkMemory):
        return [_comparable(value.links), _comparable(value.values)]
    if isinstance(value, Mapping):
        return {key: _comparable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _comparable(getattr(value, one.name)) for one in fields(value)}
    return value if isinstance(value, int | float | str | None) else _Same(value)
