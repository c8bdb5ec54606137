"""The complete graph: the links are known without a list of them, which would grow with the square."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dfl_lightning.links.draws import uniform
from dfl_lightning.links.links import Links

TRIES_AT_ONCE = 2**22
"""Random numbers that are drawn at a time."""


class AllPairs(Links):
    """All pairs of some receivers and some senders, but none of a node with itself.

    The list is written down when something reads it: counting, drawing and narrowing to nodes do without.

    Args:
        receiving: who receives, bool [n].
        sending: who sends, bool [n].

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
        """Let all nodes receive from all others.

        Args:
            nodes: n.
        """
        all_nodes = torch.ones(nodes, dtype=torch.bool)
        return cls(all_nodes, all_nodes)

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hearing, sending = torch.nonzero(self.receiving).squeeze(1), torch.nonzero(self.sending).squeeze(1)
        receivers, senders = hearing.repeat_interleave(len(sending)), sending.repeat(len(hearing))
        other = receivers != senders
        return receivers[other], senders[other]

    def __len__(self) -> int:
        return int(self.receiving.sum()) * int(self.sending.sum()) - int((self.receiving & self.sending).sum())

    def between(self, receivers: Tensor | None = None, senders: Tensor | None = None) -> AllPairs:
        """Return the links of some receivers and senders: these pairs themselves if that is all, else a list.

        Args:
            receivers: bool [n]; None: all.
            senders: bool [n]; None: all.
        """
        receiving = self.receiving if receivers is None else self.receiving & receivers
        sending = self.sending if senders is None else self.sending & senders
        same = torch.equal(receiving, self.receiving) and torch.equal(sending, self.sending)
        return self if same else AllPairs(receiving, sending)

    def within_groups(self, groups: Tensor) -> Links:
        """Return the links between nodes of the same group; only these are written down.

        Args:
            groups: of each node, long [n].
        """
        number = groups.unique(return_inverse=True)[1]
        hearing, sending = torch.nonzero(self.receiving).squeeze(1), torch.nonzero(self.sending).squeeze(1)
        sending = sending[number[sending].argsort(stable=True)]  # group by group
        sizes = torch.bincount(number[sending], minlength=self.nodes)
        starts = sizes.cumsum(0) - sizes
        heard = sizes[number[hearing]]
        receivers = hearing.repeat_interleave(heard)
        first = (starts[number[hearing]] - (heard.cumsum(0) - heard)).repeat_interleave(heard)
        senders = sending[first + torch.arange(len(receivers))]
        other = receivers != senders
        return Links(receivers[other], senders[other], self.nodes)

    def count_alike(self, groups: Tensor) -> Tensor:
        """Count the senders of its own group that each node has, long [n].

        Args:
            groups: of each node, long [n].
        """
        number = groups.unique(return_inverse=True)[1]
        sizes = torch.bincount(number[self.sending], minlength=self.nodes)
        return torch.where(self.receiving, sizes[number] - self.sending.long(), 0)

    def find(self, others: Links) -> Tensor:
        """Find where each of the others is in this list, long [len(others)]; -1 where it is not."""
        return torch.arange(len(self)) if others is self else self.places(others.receivers, others.senders)

    def places(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Find where pairs are in this list, long [e]; -1 where they are not.

        Args:
            receivers: long [e].
            senders: long [e].
        """
        inside, senders = senders < self.nodes, senders.clamp(max=self.nodes - 1)
        here = inside & self.receiving[receivers] & self.sending[senders] & (receivers != senders)
        before = self.sending.long().cumsum(0) - self.sending.long()  # senders of lower ids
        place = self.starts[receivers] + before[senders] - (self.sending[receivers] & (receivers < senders)).long()
        return torch.where(here, place, -1)

    @cached_property
    def count(self) -> Tensor:
        """The number of senders of each node, long [n]."""
        return torch.where(self.receiving, int(self.sending.sum()) - self.sending.long(), 0)

    @cached_property
    def num_receivers(self) -> Tensor:
        """The number of receivers of each sender, long [n]."""
        return torch.where(self.sending, int(self.receiving.sum()) - self.receiving.long(), 0)

    def draw(self, k: int | Tensor, seed: int) -> Links:
        """Choose k links of each receiver at random, every set of k equally likely; all where there are not more.

        A receiver tries nodes at random until it has k different in-neighbours: who else there is
        changes nothing in that. Where it wants over half of all nodes, its links are listed, and each draws a number.

        Args:
            k: the number, or one for each node, long [n].
            seed: as `stream_seed` gives it.
        """
        limits = (k if isinstance(k, Tensor) else torch.full((self.nodes,), k)).clamp(min=0)
        everything, many = limits >= self.count, 2 * limits > self.nodes
        listed = self.between(receivers=everything & (limits > 0))
        found = Links(listed.receivers, listed.senders, self.nodes)
        if bool((many & ~everything).any()):
            rest = self.between(receivers=many & ~everything)
            found = found.union(Links(rest.receivers, rest.senders, self.nodes).draw(limits, seed))
        tried = self._tried(torch.where(everything | many, 0, limits), seed)
        return tried.union(found) if len(found) else tried

    def _tried(self, limits: Tensor, seed: int) -> Links:
        """Find so many different senders of each receiver, long [n]; there must be as many."""
        found: list[Tensor] = []
        left, tries = torch.nonzero(limits > 0).squeeze(1), 2 * int(limits.max() if len(limits) else 0) + 8
        while len(left):
            again = []
            for some in left.split(max(1, TRIES_AT_ONCE // tries)):
                nodes = (uniform(some[:, None], torch.arange(tries), seed) * self.nodes).long()
                heard = self.sending[nodes] & (nodes != some[:, None])
                first = _first_times(nodes) & heard
                chosen = first & (first.long().cumsum(1) <= limits[some][:, None])
                enough = chosen.sum(1) == limits[some]
                rows, at = torch.nonzero(chosen & enough[:, None], as_tuple=True)
                found.append(some[rows] * self.nodes + nodes[rows, at])
                again.append(some[~enough])
            left, tries = torch.cat(again), 2 * tries
        if not found:
            return Links.empty(self.nodes)
        return Links.coded(torch.cat(found).sort().values, self.nodes)


def _first_times(numbers: Tensor) -> Tensor:
    """Which entries of each row, long [r, t], are the first of their value, bool [r, t]."""
    ordered, order = numbers.sort(dim=1, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(new).scatter_(1, order, new)
