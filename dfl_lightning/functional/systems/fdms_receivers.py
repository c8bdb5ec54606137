"""FL-FDMS at each receiver: scores of the pairs of its in-neighbours, as a list that grows with the links.

A round without a server (see `functional.fdms` for the paper's), and what does it here:

1. a receiver gets the updates of its active in-neighbours                       (`sent`, on_trained)
2. who dropped out is replaced by its friend among those that were received      (`PairScores.friends`; `FDMS`)
3. the receiver scores the pairs of what it received, its own update included    (`distinct_pairs`)
4. its R and N of these pairs, which differ from other receivers' ones           (`PairScores.with_observed`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["PairScores", "count_pairs", "distinct_pairs"]

BLOCK = 2**20
"""Pairs that are worked on at a time, so that only what is kept grows with their number."""


@dataclass(frozen=True)
class PairScores:
    """R and N of pairs of clients, for each receiver that has observed them (FL-FDMS eq. 15, for each client alone).

    A pair {a, b}, a < b, of receiver k has the code (k m + b) m + a. Only observed pairs are in the list, so that it
    has at most d (d + 1) / 2 entries for a receiver that ever receives from d others: it is in the pairs, too.

    Args:
        codes: of the pairs, long [P], ascending.
        scores: R, float64 [P].
        counts: N, long [P], 1 or more.
        nodes: m.

    Examples:
        >>> heard = Links.of(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]), nodes=3)  # of receiver 0, with itself
        >>> known = PairScores.empty(3).with_observed(heard, lambda receivers, first, second: first * 1.0 + second)
        >>> known.read(torch.tensor([0, 0, 1]), torch.tensor([2, 0, 0]), torch.tensor([1, 1, 1]))
        tensor([3., 1., nan], dtype=torch.float64)
        >>> known.friends(heard, torch.tensor([0]), torch.tensor([2]))  # most similar to 2 of 0 and 1
        tensor([1])
    """

    codes: Tensor
    scores: Tensor
    counts: Tensor
    nodes: int

    @classmethod
    def empty(cls, nodes: int) -> PairScores:
        """Begin with nothing observed.

        Args:
            nodes: m.
        """
        none = torch.empty(0, dtype=torch.long)
        return cls(none, torch.empty(0, dtype=torch.float64), none, nodes)

    @classmethod
    def from_matrices(cls, scores: Tensor, counts: Tensor) -> PairScores:
        """Build the same from a symmetric matrix for each receiver.

        Args:
            scores: R, [m, m, m]: receiver, client, client.
            counts: N, likewise.
        """
        receivers, larger, smaller = torch.nonzero(counts.tril(-1), as_tuple=True)
        m = len(counts)
        where = receivers, larger, smaller
        return cls((receivers * m + larger) * m + smaller, scores[where].double(), counts[where].long(), m)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return the same as matrices: R, float64, 0 where nothing is known, and N, both [m, m, m]."""
        m = self.nodes
        receivers, larger, smaller = self.codes // m**2, self.codes // m % m, self.codes % m
        scores, counts = torch.zeros(m, m, m, dtype=torch.float64), torch.zeros(m, m, m, dtype=torch.long)
        for first, second in ((larger, smaller), (smaller, larger)):
            scores[receivers, first, second], counts[receivers, first, second] = self.scores, self.counts
        return scores, counts

    def __len__(self) -> int:
        return len(self.codes)

    def read(self, receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return R of pairs, float64 [e]; NaN where a receiver has not observed a pair, or both are one client.

        Args:
            receivers: long [e].
            first: a client each, long [e].
            second: the other one, long [e].
        """
        codes = self._coded(receivers, first, second)
        if not len(self):
            return torch.full(codes.shape, torch.nan, dtype=torch.float64)
        at = torch.searchsorted(self.codes, codes).clamp_(max=len(self) - 1)
        return torch.where(self.codes[at] == codes, self.scores[at], torch.nan)

    def friends(self, heard: Links, receivers: Tensor, clients: Tensor) -> Tensor:
        """Return the client most similar so far to each of some clients, among those with an active link now.

        Args:
            heard: from whom receivers receive in this round; themselves, too, where they take part.
            receivers: who looks for a friend, long [e].
            clients: whose friend, long [e].

        Returns:
            The friends, long [e], among equals the lowest id; -1 where no pair with one of these was observed.
        """
        found = torch.full_like(clients, -1)
        for links in _blocks(heard.count[receivers]):
            which, others = _expanded(heard, receivers[links])
            scores = self.read(receivers[links][which], clients[links][which], others)
            best = torch.full(found[links].shape, -torch.inf, dtype=torch.float64)
            best = best.scatter_reduce(0, which, scores.nan_to_num(nan=-torch.inf), "amax")
            winners = scores == best[which]  # NaN is never equal
            lowest = torch.full_like(found[links], self.nodes)
            lowest = lowest.scatter_reduce(0, which[winners], others[winners], "amin")
            found[links] = torch.where(lowest < self.nodes, lowest, -1)
        return found

    def with_observed(self, heard: Links, score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> PairScores:
        """Update the running means with this round's pairs: all of those that a receiver receives from.

        Args:
            heard: from whom receivers receive in this round, themselves included.
            score: (receivers, first, second), each long [e], first < second, -> scores [e] of these pairs; NaN: not
                observed.
        """
        m = self.nodes
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        done = 0
        for start, stop in _receiver_blocks(heard):
            receivers, first, second = _pairs(heard, start, stop)
            codes = self._coded(receivers, first, second)
            seen = score(receivers, first, second).double()
            low, high = torch.searchsorted(self.codes, torch.tensor([start, stop]) * m * m).tolist()
            parts += [self._slice(done, low), self._updated(low, high, codes[~seen.isnan()], seen[~seen.isnan()])]
            done = high
        parts.append(self._slice(done, len(self)))
        codes, scores, counts = (torch.cat(part) for part in zip(*parts, strict=True))
        return PairScores(codes, scores, counts, m)

    def _slice(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes[low:high], self.scores[low:high], self.counts[low:high]

    def _updated(self, low: int, high: int, codes: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entries from low to high with further observations, whose codes ascend."""
        known, scores, counts = self._slice(low, high)
        if not torch.equal(known, codes):
            together = torch.cat([known, codes]).unique()
            scores, counts = _spread(together, known, scores), _spread(together, known, counts)
            at = torch.searchsorted(together, codes)
        else:
            together, at = known, torch.arange(len(codes))
        n = counts[at]
        scores = scores.index_put((at,), (n * scores[at] + seen) / (n + 1))
        return together, scores, counts.index_put((at,), n + 1)

    def _coded(self, receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return (receivers * self.nodes + torch.maximum(first, second)) * self.nodes + torch.minimum(first, second)


def distinct_pairs(heard: Links) -> Links:
    """Return the pairs of clients that some receiver receives from both, the larger id as receiver.

    Args:
        heard: from whom receivers receive, themselves included.

    Examples:
        >>> heard = Links.of(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 0, 1]), nodes=3)
        >>> pairs = distinct_pairs(heard)
        >>> pairs.receivers.tolist(), pairs.senders.tolist()
        ([1], [0])
    """
    codes = torch.empty(0, dtype=torch.long)
    for start, stop in _receiver_blocks(heard):
        _, first, second = _pairs(heard, start, stop)
        codes = torch.cat([codes, (second * heard.nodes + first).unique()]).unique()
    return Links.coded(codes, heard.nodes)


def count_pairs(heard: Tensor) -> int:
    """Count the pairs that receivers of so many clients have.

    Args:
        heard: number of senders of each receiver, itself included, long [n].
    """
    return int((heard * (heard - 1)).sum()) // 2


def _receiver_blocks(heard: Links) -> Iterator[tuple[int, int]]:
    """Ranges of receivers [start, stop) with about `BLOCK` pairs each, or one receiver."""
    for some in _blocks(heard.count * (heard.count - 1) // 2):
        yield some.start, some.stop


def _blocks(sizes: Tensor) -> Iterator[slice]:
    """Consecutive entries whose sizes sum to at most `BLOCK`, or single ones."""
    ends, start, taken = sizes.cumsum(0), 0, 0
    while start < len(sizes):
        stop = max(start + 1, int(torch.searchsorted(ends, taken + BLOCK, right=True)))
        yield slice(start, stop)
        start, taken = stop, int(ends[stop - 1])


def _expanded(heard: Links, receivers: Tensor) -> tuple[Tensor, Tensor]:
    """The senders of each of some receivers: the place of the receiver, long [e], and the client, long [e]."""
    counts = heard.count[receivers]
    which = torch.arange(len(receivers)).repeat_interleave(counts)
    inside = torch.arange(len(which)) - (counts.cumsum(0) - counts)[which]
    return which, heard.senders[heard.starts[receivers][which] + inside]


def _pairs(heard: Links, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
    """All pairs of senders of receivers [start, stop), by ascending codes: receivers, smaller, larger ids, long [e]."""
    links = slice(int(heard.starts[start]), int(heard.starts[stop]))
    receivers, senders = heard.receivers[links], heard.senders[links]
    before = torch.arange(links.start, links.stop) - heard.starts[receivers]  # senders of the receiver before this one
    link = torch.arange(len(senders)).repeat_interleave(before)
    inside = torch.arange(len(link)) - (before.cumsum(0) - before)[link]
    first = senders[(link - before[link]) + inside]
    return receivers[link], first, senders[link]


def _spread(together: Tensor, known: Tensor, values: Tensor) -> Tensor:
    """Values of known codes beside a longer list of codes, 0 for those that are new."""
    return values.new_zeros(len(together)).index_put((torch.searchsorted(together, known),), values)
