"""What a round costs: which messages its policies made clients receive.

Row i is the receiver, column j the sender.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.references import pairs_of

BYTES = 4
"""Of a number in a message: messages are counted in float32, whatever the simulation computes in."""


@dataclass(frozen=True)
class Messages:
    """What went over the links of a round, an entry a link that was used.

    Attributes:
        receivers: long [e].
        senders: long [e].
        models: whole models, long [e].
        parts: other messages, long [e].
        bytes: of all of them, long [e].
    """

    receivers: Tensor
    senders: Tensor
    models: Tensor
    parts: Tensor
    bytes: Tensor


@dataclass
class Ledger:
    """What a round's policies made clients receive; what is still at hand is not received again.

    Args:
        models: [n, n], receiver i fetched the shared parameters of node j (looked at or mixed).
        mixed: [n, n], of these, the ones that were mixed.

    Attributes:
        parts: what else than models was received, by what it is and how many numbers it has: bool [n, n], i got that
            of j (a layer of the model, an update beside it).
        repeated: how many models were fetched once more, after the receiver had forgotten them.
        kept: bool [n, n], the models that i has at hand now.
        summed: bool [n, n], i has j's model as a part of a sum, which can be mixed without fetching it again.
        sizes: long [n], the bytes of a model of each sender where an Outgoing policy says so, -1 elsewhere; None: of
            nobody.
        held: long [n], how many of others' models each node had at hand at once, at most; sums are not counted.
    """

    models: Tensor
    mixed: Tensor

    def __post_init__(self) -> None:
        self.parts: dict[tuple[str, int], Tensor] = {}
        self.kept, self.summed = torch.zeros_like(self.models), torch.zeros_like(self.models)
        self.repeated = 0
        self.sizes: Tensor | None = None
        self._again: Tensor | None = None  # most rounds repeat nothing
        self.held = torch.zeros(len(self.models), dtype=torch.long)

    @classmethod
    def empty(cls, nodes: int) -> Ledger:
        """Nothing received yet."""
        models, mixed = torch.zeros(2, nodes, nodes, dtype=torch.bool)
        return cls(models, mixed)

    @property
    def again(self) -> Tensor:
        """How often i fetched j's model once more, long [n, n]."""
        return torch.zeros_like(self.models, dtype=torch.long) if self._again is None else self._again

    def fetch(self, receivers: Tensor, senders: Tensor, mixed: bool = False) -> None:
        """Receivers fetch the senders' models; one's own costs nothing, nor what is at hand.

        Args:
            receivers: long [e].
            senders: long [e].
            mixed: whether the receivers mix these models.
        """
        foreign = receivers != senders
        receivers, senders = receivers[foreign], senders[foreign]
        known = self.kept[receivers, senders]
        if mixed:
            self.mixed[receivers, senders] = True
            known = known | self.summed[receivers, senders]
        receivers, senders = receivers[~known], senders[~known]
        repeats = self.models[receivers, senders]
        if repeats.any():
            self._again = self.again
            self._again[receivers, senders] += repeats.long()  # a pair twice in a call counts once
            self.repeated = int(self._again.sum())
        self.models[receivers, senders] = True
        self.kept[receivers, senders] = True
        busy = torch.zeros_like(self.held, dtype=torch.bool)
        busy[receivers] = True
        who = torch.nonzero(busy).squeeze(1)
        self.held[who] = torch.maximum(self.held[who], self.kept[who].sum(1))

    @property
    def proxies(self) -> Tensor:
        """Whether i got any part of j, bool [n, n]."""
        found = torch.zeros_like(self.models)
        for pairs in self.parts.values():
            found |= pairs
        return found

    def fetch_part(self, what: str, numbers: int, receivers: Tensor, senders: Tensor) -> None:
        """Receivers fetch something of the senders that is no model; the same once a round, one's own for nothing.

        Args:
            what: the name of the part; parts of different names are different messages.
            numbers: how many numbers it has.
            receivers: long [p].
            senders: long [p].
        """
        foreign = receivers != senders
        if (what, numbers) not in self.parts:
            self.parts[what, numbers] = torch.zeros_like(self.models)
        self.parts[what, numbers][receivers[foreign], senders[foreign]] = True

    def resize(self, senders: Tensor, size: int) -> None:
        """From now on a model of these senders has another size.

        Args:
            senders: whose models, long [k].
            size: bytes of each.
        """
        if self.sizes is None:
            self.sizes = torch.full((len(self.models),), -1)
        self.sizes[senders] = size

    def model_bytes(self, numbers: int) -> Tensor:
        """Bytes of a model of each sender, long [n].

        Args:
            numbers: how many a whole model has.
        """
        whole = torch.full((len(self.models),), BYTES * numbers)
        return whole if self.sizes is None else torch.where(self.sizes < 0, whole, self.sizes)

    def total_bytes(self, numbers: int) -> int:
        """Of everything that was received; `numbers` as for `model_bytes`."""
        parts = sum(size * int(pairs.sum()) for (_, size), pairs in self.parts.items())
        models = int(self.models.sum()) + self.repeated
        if self.sizes is None:
            return BYTES * (models * numbers + parts)
        times = self.models.sum(0) if self._again is None else (self.models + self._again).sum(0)
        return int((times * self.model_bytes(numbers)).sum()) + BYTES * parts

    def by_link(self, numbers: int) -> Messages:
        """What went over each link that was used.

        Args:
            numbers: how many a whole model has.
        """
        used = self.models
        for pairs in self.parts.values():
            used = used | pairs
        receivers, senders = pairs_of(used)
        models = self.models[receivers, senders].long()
        if self._again is not None:
            models += self._again[receivers, senders]
        parts, sent = torch.zeros_like(models), models * self.model_bytes(numbers)[senders]
        for (_, size), pairs in self.parts.items():
            got = pairs[receivers, senders].long()
            parts, sent = parts + got, sent + got * BYTES * size
        return Messages(receivers, senders, models, parts, sent)

    def forget(self, receivers: Tensor) -> None:
        """The receivers, long [r], throw away the models that they have at hand."""
        self.kept[receivers] = False
