"""The complete graph without a list of its links, whose length would grow with the square of the clients."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dfl_lightning.links.draws import uniform
from dfl_lightning.links.links import Links

TRIES_AT_ONCE = 2**22
"""Largest number of random numbers that are drawn at a time, which bounds the memory."""


class AllPairs(Links):
    """All pairs of some receivers and some senders, except pairs of a node with itself.

    The list is only made when `receivers` or `senders` is read. Counting links, drawing some, and narrowing them to
    nodes or groups work without it.

    Args:
        receiving: True for nodes that receive, bool [n].
        sending: True for nodes that send, bool [n].

    Examples:
        >>> all_nodes = AllPairs.of_nodes(100_000)
        >>> len(all_nodes), len(all_nodes.draw(5, seed=0))
        (9999900000, 500000)
    """

    def __init__(self, receiving: Tensor, sending: Tensor) -> None:
        self.nodes = self.rows = len(receiving)
        self.receiving, self.sending = receiving, sending

    @classmethod
    def of_nodes(cls, nodes: int) -> AllPairs:
        """Link each node to all others.

        Args:
            nodes: number of nodes n.
        """
        all_nodes = torch.ones(nodes, dtype=torch.bool)
        return cls(all_nodes, all_nodes)

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        receiving, sending = torch.nonzero(self.receiving).squeeze(1), torch.nonzero(self.sending).squeeze(1)
        receivers, senders = receiving.repeat_interleave(len(sending)), sending.repeat(len(receiving))
        different = receivers != senders
        return receivers[different], senders[different]

    def __len__(self) -> int:
        return int(self.receiving.sum()) * int(self.sending.sum()) - int((self.receiving & self.sending).sum())

    def between(self, receivers: Tensor | None = None, senders: Tensor | None = None) -> AllPairs:
        """Return the links between some receivers and some senders, again without a list; itself if these are all.

        Args:
            receivers: bool [n]; None: all.
            senders: bool [n]; None: all.
        """
        receiving = self.receiving if receivers is None else self.receiving & receivers
        sending = self.sending if senders is None else self.sending & senders
        same = torch.equal(receiving, self.receiving) and torch.equal(sending, self.sending)
        return self if same else AllPairs(receiving, sending)

    def within_groups(self, groups: Tensor) -> Links:
        """Return the links between nodes of the same group, as a list of these links only.

        Args:
            groups: group of each node, long [n].
        """
        number = groups.unique(return_inverse=True)[1]
        receiving, sending = torch.nonzero(self.receiving).squeeze(1), torch.nonzero(self.sending).squeeze(1)
        sending = sending[number[sending].argsort(stable=True)]  # group by group
        sizes = torch.bincount(number[sending], minlength=self.nodes)
        starts = sizes.cumsum(0) - sizes
        counts = sizes[number[receiving]]  # senders in the group of each receiver, itself included
        receivers = receiving.repeat_interleave(counts)
        first = (starts[number[receiving]] - (counts.cumsum(0) - counts)).repeat_interleave(counts)
        senders = sending[first + torch.arange(len(receivers))]
        different = receivers != senders
        return Links(receivers[different], senders[different], self.nodes)

    def count_alike(self, groups: Tensor) -> Tensor:
        """Count each node's senders in its own group, long [n].

        Args:
            groups: group of each node, long [n].
        """
        number = groups.unique(return_inverse=True)[1]
        sizes = torch.bincount(number[self.sending], minlength=self.nodes)
        return torch.where(self.receiving, sizes[number] - self.sending.long(), 0)

    def find(self, others: Links) -> Tensor:
        """Find the index of each of the other links in this list, long [len(others)]; -1 if it is not here."""
        return torch.arange(len(self)) if others is self else self.places(others.receivers, others.senders)

    def places(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Find the index of each pair in this list, long [e]; -1 if it is not here.

        Args:
            receivers: long [e].
            senders: long [e].
        """
        inside, senders = senders < self.nodes, senders.clamp(max=self.nodes - 1)
        present = inside & self.receiving[receivers] & self.sending[senders] & (receivers != senders)
        lower = self.sending.long().cumsum(0) - self.sending.long()  # number of senders with lower ids
        index = self.starts[receivers] + lower[senders] - (self.sending[receivers] & (receivers < senders)).long()
        return torch.where(present, index, -1)

    @cached_property
    def count(self) -> Tensor:
        """The number of senders of each node, long [n]."""
        return torch.where(self.receiving, int(self.sending.sum()) - self.sending.long(), 0)

    @cached_property
    def num_receivers(self) -> Tensor:
        """The number of receivers of each sender, long [n]."""
        return torch.where(self.sending, int(self.receiving.sum()) - self.receiving.long(), 0)

    def draw(self, k: int | Tensor, seed: int | Tensor) -> Links:
        """Draw k links of each receiver, every set of k equally likely; all links of a receiver that has at most k.

        A receiver draws nodes at random until it has k different in-neighbours, so that its draw does not depend on
        other receivers. If k is over half of all nodes, the links are listed, and those with the lowest numbers are
        drawn, as in `Links.draw`.

        Args:
            k: number of links, the same for all receivers or one for each node, long [n].
            seed: a seed from `stream_seed`, one for all links or one for each receiver, long [n].
        """
        limits = (k if isinstance(k, Tensor) else torch.full((self.nodes,), k)).clamp(min=0)
        everything, many = limits >= self.count, 2 * limits > self.nodes
        whole, listed = everything & (limits > 0), Links.empty(self.nodes)
        if bool(whole.any()):
            all_links = self.between(receivers=whole)
            listed = Links(all_links.receivers, all_links.senders, self.nodes)
        if bool((many & ~everything).any()):
            rest = self.between(receivers=many & ~everything)
            listed = listed.union(Links(rest.receivers, rest.senders, self.nodes).draw(limits, seed))
        drawn = self._draw_by_rejection(torch.where(everything | many, 0, limits), seed)
        return drawn.union(listed) if len(listed) else drawn

    def _draw_by_rejection(self, limits: Tensor, seed: int | Tensor) -> Links:
        """Draw as many different senders of each receiver as its limit, long [n], which its links must reach.

        Nodes that are drawn twice or are not in-neighbours are rejected. A receiver that has too few draws again, twice
        as many nodes.
        """
        codes: list[Tensor] = []
        left, tries = torch.nonzero(limits > 0).squeeze(1), 2 * int(limits.max() if len(limits) else 0) + 8
        while len(left):
            again = []
            for some in left.split(max(1, TRIES_AT_ONCE // tries)):
                nodes = (uniform(some[:, None], torch.arange(tries), seed) * self.nodes).long()
                in_neighbours = self.sending[nodes] & (nodes != some[:, None])
                first = _mark_first_occurrences(nodes) & in_neighbours
                chosen = first & (first.long().cumsum(1) <= limits[some][:, None])
                enough = chosen.sum(1) == limits[some]
                rows, columns = torch.nonzero(chosen & enough[:, None], as_tuple=True)
                codes.append(some[rows] * self.nodes + nodes[rows, columns])
                again.append(some[~enough])
            left, tries = torch.cat(again), 2 * tries
        if not codes:
            return Links.empty(self.nodes)
        return Links.coded(torch.cat(codes).sort().values, self.nodes)


def _mark_first_occurrences(numbers: Tensor) -> Tensor:
    """Mark the entries, long [r, t], that do not occur earlier in their row, bool [r, t]."""
    ordered, order = numbers.sort(dim=1, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(new).scatter_(1, order, new)
