"""The costs of a round: the messages that clients received because of its policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links

BYTES = 4
"""Bytes of a number in a message: messages are counted in float32, whatever the simulation's precision is."""


@dataclass(frozen=True)
class Messages:
    """The messages over each used link of a round.

    Attributes:
        links: the links over which something was received.
        models: number of whole models, long [E].
        parts: number of parts of models and of other messages, long [E].
        bytes: bytes of all of them, long [E].
    """

    links: Links
    models: Tensor
    parts: Tensor
    bytes: Tensor


class Ledger:
    """The messages that clients receive in a round. A model that a receiver still holds is not received again.

    Args:
        nodes: n, the number of clients and servers.

    Attributes:
        models: links over which a receiver fetched the shared parameters of a node, to look at them or to mix them.
        parts: links by name and number of numbers of a part: a part of a model, such as a layer, or an update that was
            fetched in addition to the model.
        messages: links, and bytes of each, long [E], by name of a message that is neither a model nor a part of one.
        sizes: long [n], the bytes of each sender's model as an Outgoing policy set them, -1: not set; None: no size is.
        mixed_again: number of models that were received once more because they were mixed in another mixing step.
        held: long [n], the largest number of other nodes' models that each node held at once; sums are not counted.
        counts: True if what is fetched is counted; False while a monitor looks at the round.
        pushes: True if clients have pushed their models to the receivers, which fetch none; see `push`.
    """

    def __init__(self, nodes: int) -> None:
        self.models = Links.empty(nodes)
        self.parts: dict[tuple[str, int], Links] = {}
        self.messages: dict[str, tuple[Links, Tensor]] = {}
        self.sizes: Tensor | None = None
        self.mixed_again = 0
        self.held = torch.zeros(nodes, dtype=torch.long)
        self.counts, self.pushes = True, False
        nothing = torch.zeros(0, dtype=torch.bool)
        # One entry for each link of `models`. True if the receiver has mixed the model, holds it now, or holds a sum
        # that includes it and can be mixed without fetching the model again.
        self._mixed = self._kept = self._summed = nothing
        # How often the receiver fetched the model once more, after it had discarded it.
        self._again = nothing.long()

    @property
    def nodes(self) -> int:
        """The number of clients and servers, n."""
        return self.models.nodes

    @property
    def mixed(self) -> Links:
        """The links of `models` whose receiver mixed the model."""
        return self.models.keep(self._mixed)

    @property
    def probed(self) -> Links:
        """The links of `models` whose receiver fetched the model, and did not mix it."""
        return Links.empty(self.nodes) if self.pushes else self.models.difference(self.mixed)

    @property
    def kept(self) -> Links:
        """The links of `models` whose receiver holds the model now."""
        return self.models.keep(self._kept)

    @property
    def again(self) -> Tensor:
        """The number of times that each of `models` was fetched once more, long [E]."""
        return self._again

    @property
    def repeated(self) -> int:
        """The number of models that were fetched once more, after the receiver had discarded them."""
        return int(self._again.sum())

    @property
    def proxies(self) -> Links:
        """The links over which a part of a model, or an update, was received."""
        all_parts = Links.empty(self.nodes)
        for links in self.parts.values():
            all_parts = all_parts.union(links)
        return all_parts

    @property
    def num_messages(self) -> int:
        """The number of messages received that are neither models nor parts of models."""
        return sum(len(links) for links, _ in self.messages.values())

    @property
    def used(self) -> Links:
        """The links over which anything was received."""
        used = self.models.union(self.proxies)
        for links, _ in self.messages.values():
            used = used.union(links)
        return used

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore all calls inside that would count messages, discard models or set sizes."""
        before, self.counts = self.counts, False
        try:
            yield
        finally:
            self.counts = before

    def push(self, links: Links) -> None:
        """Let senders send their models over these links; receivers that use what has arrived fetch nothing.

        Args:
            links: links between different nodes.
        """
        if self.counts:
            self._listed(links)
            self.pushes = True

    def fetch(self, receivers: Tensor, senders: Tensor, mixed: bool = False) -> None:
        """Let receivers fetch the senders' models; a node's own model and models that it still holds cost nothing.

        Args:
            receivers: long [e].
            senders: long [e].
            mixed: True if the receivers mix these models.
        """
        foreign = receivers != senders
        self.fetch_over(Links.of(receivers[foreign], senders[foreign], self.nodes), mixed)

    def fetch_over(self, links: Links, mixed: bool = False) -> None:
        """Fetch models over these links; models that a receiver still holds cost nothing.

        Args:
            links: links between different nodes.
            mixed: True if the receivers mix these models.
        """
        if not len(links) or not self.counts or self.pushes:
            return
        former = links.within(self.models)
        at = self._listed(links)
        available = self._kept[at]
        if mixed:
            available = available | self._summed[at]
            self.mixed_again += int((self._mixed[at] & ~available).sum())
            self._mixed[at] = True
        self._again[at[former & ~available]] += 1
        if not bool(available.all()):
            self._kept[at[~available]] = True
            self.held = torch.maximum(self.held, self.kept.count)

    def sum_up(self, receivers: Tensor, links: Links) -> None:
        """Note that each receiver keeps a sum of the models that it fetched over these links.

        A model in the sum can be mixed later without being fetched again.

        Args:
            receivers: long [r]; their former sums are discarded.
            links: links of these receivers over which they have fetched models.
        """
        if not self.counts:
            return
        is_receiver = torch.zeros(self.nodes, dtype=torch.bool)
        is_receiver[receivers] = True
        self._summed = self._summed & ~is_receiver[self.models.receivers]
        self._summed[self.models.find(links)] = True

    def forget(self, receivers: Tensor) -> None:
        """Let the receivers, long [r], discard the models that they hold."""
        if not self.counts:
            return
        is_receiver = torch.zeros(self.nodes, dtype=torch.bool)
        is_receiver[receivers] = True
        self._kept = self._kept & ~is_receiver[self.models.receivers]

    def fetch_part(self, what: str, numbers: int, links: Links) -> None:
        """Let receivers fetch a part of the senders' models, or an update.

        A part of the same name and size is received at most once in a round; a node's own part costs nothing.

        Args:
            what: name of the part; parts of different names are different messages.
            numbers: number of numbers that the part has.
            links: links over which it is received.
        """
        if not self.counts:
            return
        links = links.keep(links.receivers != links.senders)
        former = self.parts.get((what, numbers))
        self.parts[what, numbers] = links if former is None else former.union(links)

    def fetch_message(self, what: str, links: Links, size: Tensor | int) -> None:
        """Let receivers fetch a message that is neither a model nor a part of one.

        A message of the same name is received at most once in a round; a node's own message costs nothing.

        Args:
            what: name of the message.
            links: links over which it is received.
            size: bytes, one number for all links or long [len(links)].
        """
        if not self.counts:
            return
        sizes = size if isinstance(size, Tensor) else torch.full((len(links),), size)
        foreign = links.receivers != links.senders
        links, sizes = links.keep(foreign), sizes[foreign]
        if what in self.messages:
            former, former_sizes = self.messages[what]
            both = former.union(links)
            sizes = torch.maximum(former.spread(former_sizes, both, 0), links.spread(sizes, both, 0))
            links = both
        self.messages[what] = links, sizes

    def resize(self, senders: Tensor, size: int) -> None:
        """Set the size of the models of some senders for the rest of the round.

        Args:
            senders: long [k].
            size: bytes of each model.
        """
        if not self.counts:
            return
        if self.sizes is None:
            self.sizes = torch.full((self.nodes,), -1)
        self.sizes[senders] = size

    def model_bytes(self, numbers: int) -> Tensor:
        """Count the bytes of a model of each sender, long [n].

        Args:
            numbers: number of shared parameters of a whole model.
        """
        whole = torch.full((self.nodes,), BYTES * numbers)
        return whole if self.sizes is None else torch.where(self.sizes < 0, whole, self.sizes)

    def total_bytes(self, numbers: int) -> int:
        """Count the bytes of all messages that were received; see `model_bytes` for `numbers`."""
        parts = sum(size * len(links) for (_, size), links in self.parts.items())
        messages = sum(int(sizes.sum()) for _, sizes in self.messages.values())
        each = self.model_bytes(numbers)[self.models.senders]
        return int((each * (1 + self._again)).sum()) + BYTES * parts + messages

    def costs(self, clients: int, numbers: int) -> dict[str, float]:
        """Return the columns of `metrics.csv` that count messages, as means over clients.

        Args:
            clients: m, the number of clients.
            numbers: number of shared parameters of a whole model.
        """
        models = len(self.models) + self.repeated
        probes = models - len(self.mixed) - self.mixed_again if clients == self.nodes and not self.pushes else 0
        costs = {
            "models_received": models / clients,
            "probes_received": probes / clients,
            "proxies_received": sum(map(len, self.parts.values())) / clients,
            "bytes_received": self.total_bytes(numbers) / clients,
        }
        return {**costs, "messages_received": self.num_messages / clients} if self.messages else costs

    def by_link(self, numbers: int) -> Messages:
        """Count the messages over each link that was used.

        Args:
            numbers: number of shared parameters of a whole model.
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
        """Add the links to `models` and return their indices there, long [e]."""
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
