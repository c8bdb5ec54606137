"""What a round costs: which messages its policies made clients receive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links

BYTES = 4
"""Of a number in a message: messages are counted in float32, whatever the simulation computes in."""


@dataclass(frozen=True)
class Messages:
    """What went over the links of a round, an entry a link that was used.

    Attributes:
        links: those that were used.
        models: whole models, long [E].
        parts: parts of models, and other messages, long [E].
        bytes: of all of them, long [E].
    """

    links: Links
    models: Tensor
    parts: Tensor
    bytes: Tensor


class Ledger:
    """What a round's policies made clients receive; what is still at hand is not received again.

    Args:
        nodes: n.

    Attributes:
        models: links over which a receiver fetched the shared parameters of a node, to look at them or to mix them.
        parts: what else was received, by what it is and how many numbers it has: the links over which it was (a layer
            of the model, an update beside it).
        messages: what was received that is neither, by what it is: the links over which it was, and bytes, long [E].
        sizes: long [n], the bytes of a model of each sender where an Outgoing policy says so, -1 elsewhere; None: of
            none.
        mixed_again: how many messages brought a model that was mixed once more, in another mixing step.
        held: long [n], how many of others' models each node had at hand at once, at most; sums are not counted.
        counts: whether what is fetched is counted; not while a monitor looks at the round.
    """

    def __init__(self, nodes: int) -> None:
        self.models = Links.empty(nodes)
        self.parts: dict[tuple[str, int], Links] = {}
        self.messages: dict[str, tuple[Links, Tensor]] = {}
        self.sizes: Tensor | None = None
        self.mixed_again = 0
        self.held = torch.zeros(nodes, dtype=torch.long)
        self.counts = True
        nothing = torch.zeros(0, dtype=torch.bool)
        # beside `models`: whether it was mixed, is at hand now, is a part of a sum that can be mixed without fetching
        # it again; and how often it was fetched once more, after the receiver had forgotten it
        self._mixed = self._kept = self._summed = nothing
        self._again = nothing.long()

    @property
    def nodes(self) -> int:
        """Clients and servers, n."""
        return self.models.nodes

    @property
    def mixed(self) -> Links:
        """Of `models`, the links whose models were mixed."""
        return self.models.keep(self._mixed)

    @property
    def kept(self) -> Links:
        """Of `models`, the links whose models the receivers have at hand now."""
        return self.models.keep(self._kept)

    @property
    def again(self) -> Tensor:
        """How often each of `models` was fetched once more, long [E]."""
        return self._again

    @property
    def repeated(self) -> int:
        """How many models were fetched once more, after the receiver had forgotten them."""
        return int(self._again.sum())

    @property
    def proxies(self) -> Links:
        """Links over which something else than a model was received."""
        found = Links.empty(self.nodes)
        for links in self.parts.values():
            found = found.union(links)
        return found

    @property
    def num_messages(self) -> int:
        """How many messages were received that are neither models nor parts of them."""
        return sum(len(links) for links, _ in self.messages.values())

    @property
    def used(self) -> Links:
        """Links over which anything was received."""
        found = self.models.union(self.proxies)
        for links, _ in self.messages.values():
            found = found.union(links)
        return found

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count, throw away and resize nothing inside."""
        before, self.counts = self.counts, False
        try:
            yield
        finally:
            self.counts = before

    def fetch(self, receivers: Tensor, senders: Tensor, mixed: bool = False) -> None:
        """Let receivers fetch the senders' models; one's own costs nothing, nor what is at hand.

        Args:
            receivers: long [e].
            senders: long [e].
            mixed: whether the receivers mix these models.
        """
        foreign = receivers != senders
        self.fetch_over(Links.of(receivers[foreign], senders[foreign], self.nodes), mixed)

    def fetch_over(self, links: Links, mixed: bool = False) -> None:
        """Fetch models over these links, none of which leads from a node to itself; what is at hand costs nothing.

        Args:
            links: between nodes.
            mixed: whether the receivers mix these models.
        """
        if not len(links) or not self.counts:
            return
        former = links.within(self.models)
        at = self._listed(links)
        known = self._kept[at]
        if mixed:
            known = known | self._summed[at]
            self.mixed_again += int((self._mixed[at] & ~known).sum())
            self._mixed[at] = True
        self._again[at[former & ~known]] += 1
        if not bool(known.all()):
            self._kept[at[~known]] = True
            self.held = torch.maximum(self.held, self.kept.count)

    def sum_up(self, receivers: Tensor, links: Links) -> None:
        """Give receivers a sum of models at hand, of those that these links lead to.

        Args:
            receivers: long [r], whose former sums are forgotten.
            links: of these receivers, which have fetched the models.
        """
        if not self.counts:
            return
        gone = torch.zeros(self.nodes, dtype=torch.bool)
        gone[receivers] = True
        self._summed = self._summed & ~gone[self.models.receivers]
        self._summed[self.models.find(links)] = True

    def forget(self, receivers: Tensor) -> None:
        """Let the receivers, long [r], throw away the models that they have at hand."""
        if not self.counts:
            return
        gone = torch.zeros(self.nodes, dtype=torch.bool)
        gone[receivers] = True
        self._kept = self._kept & ~gone[self.models.receivers]

    def fetch_part(self, what: str, numbers: int, links: Links) -> None:
        """Let receivers fetch something of the senders that is no model; the same once a round, one's own for nothing.

        Args:
            what: the name of the part; parts of different names are different messages.
            numbers: how many numbers it has.
            links: over which it comes.
        """
        if not self.counts:
            return
        links = links.keep(links.receivers != links.senders)
        former = self.parts.get((what, numbers))
        self.parts[what, numbers] = links if former is None else former.union(links)

    def fetch_message(self, what: str, links: Links, size: Tensor | int) -> None:
        """Let receivers fetch what is neither a model nor a part of one; the same once, one's own for nothing.

        Args:
            what: the name of the message.
            links: over which it comes.
            size: bytes, of all of them or long [len(links)].
        """
        if not self.counts:
            return
        sizes = size if isinstance(size, Tensor) else torch.full((len(links),), size)
        foreign = links.receivers != links.senders
        links, sizes = links.keep(foreign), sizes[foreign]
        if what in self.messages:
            former, known = self.messages[what]
            both = former.union(links)
            sizes = torch.maximum(former.spread(known, both, 0), links.spread(sizes, both, 0))
            links = both
        self.messages[what] = links, sizes

    def resize(self, senders: Tensor, size: int) -> None:
        """Give a model of these senders another size from now on.

        Args:
            senders: whose models, long [k].
            size: bytes of each.
        """
        if not self.counts:
            return
        if self.sizes is None:
            self.sizes = torch.full((self.nodes,), -1)
        self.sizes[senders] = size

    def model_bytes(self, numbers: int) -> Tensor:
        """Count the bytes of a model of each sender, long [n].

        Args:
            numbers: how many a whole model has.
        """
        whole = torch.full((self.nodes,), BYTES * numbers)
        return whole if self.sizes is None else torch.where(self.sizes < 0, whole, self.sizes)

    def total_bytes(self, numbers: int) -> int:
        """Count the bytes of everything that was received; `numbers` as for `model_bytes`."""
        parts = sum(size * len(links) for (_, size), links in self.parts.items())
        messages = sum(int(sizes.sum()) for _, sizes in self.messages.values())
        each = self.model_bytes(numbers)[self.models.senders]
        return int((each * (1 + self._again)).sum()) + BYTES * parts + messages

    def costs(self, clients: int, numbers: int) -> dict[str, float]:
        """Return the columns of `metrics.csv` that count messages, as means over clients.

        Args:
            clients: m.
            numbers: how many a whole model has.
        """
        models = len(self.models) + self.repeated
        probes = models - len(self.mixed) - self.mixed_again if clients == self.nodes else 0
        costs = {
            "models_received": models / clients,
            "probes_received": probes / clients,
            "proxies_received": sum(map(len, self.parts.values())) / clients,
            "bytes_received": self.total_bytes(numbers) / clients,
        }
        return {**costs, "messages_received": self.num_messages / clients} if self.messages else costs

    def by_link(self, numbers: int) -> Messages:
        """Return what went over each link that was used.

        Args:
            numbers: how many a whole model has.
        """
        used = self.used
        models = self.models.spread(1 + self._again, used, 0)
        parts, sent = torch.zeros_like(models), models * self.model_bytes(numbers)[used.senders]
        for (_, size), links in self.parts.items():
            got = used.within(links).long()
            parts, sent = parts + got, sent + got * BYTES * size
        for links, sizes in self.messages.values():
            parts, sent = parts + used.within(links).long(), sent + links.spread(sizes, used, 0)
        return Messages(used, models, parts, sent)

    def _listed(self, links: Links) -> Tensor:
        """Where the links are in `models`, into which those that are new have been put, long [e]."""
        at = self.models.find(links)
        if bool((at >= 0).all()):
            return at
        together = self.models.union(links)
        back = together.find(self.models)
        for name in ("_mixed", "_kept", "_summed", "_again"):
            former = getattr(self, name)
            values = former.new_zeros(len(together))
            values[back] = former
            setattr(self, name, values)
        self.models = together
        return together.find(links)
