"""FL-FDMS at each receiver: scores of the pairs of its in-neighbours, as a list that grows with the links.

A round without a server (see `functional.systems.fdms` for the paper's), and the code of each step:

1. a receiver gets the updates of its active in-neighbours                       (`sent`, on_trained)
2. a dropped client's friend, among the clients whose updates it received        (`PairScores.friends`; `FDMS`)
3. scores of the pairs of these updates and its own                              (`distinct_pairs`)
4. R and N of these pairs, which each receiver has for itself                    (`PairScores.with_observed`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["PairScores", "count_pairs", "distinct_pairs"]

BLOCK = 2**20
"""Number of pairs that are processed at a time, so that temporary memory does not grow with the number of pairs."""


@dataclass(frozen=True)
class PairScores:
    """R and N of pairs of clients, for each receiver that has observed them (FL-FDMS eq. 15 at each client).

    A pair {a, b}, a < b, of receiver k has the code (k m + b) m + a. Only observed pairs are in the list: at most
    d (d + 1) / 2 entries for a receiver that ever receives from d others, as it is itself a member of pairs.

    Args:
        codes: codes of the pairs, long [P], ascending.
        scores: R, the mean score of each pair, float64 [P].
        counts: N, the number of scores in each mean, long [P], 1 or more.
        nodes: m, the number of clients.

    Examples:
        >>> received = Links.of(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]), nodes=3)  # of receiver 0, with itself
        >>> known = PairScores.empty(3).with_observed(received, lambda receivers, first, second: first * 1.0 + second)
        >>> known.read(torch.tensor([0, 0, 1]), torch.tensor([2, 0, 0]), torch.tensor([1, 1, 1]))
        tensor([3., 1., nan], dtype=torch.float64)
        >>> known.friends(received, torch.tensor([0]), torch.tensor([2]))  # most similar to 2 of 0 and 1
        tensor([1])
    """

    codes: Tensor
    scores: Tensor
    counts: Tensor
    nodes: int

    @classmethod
    def empty(cls, nodes: int) -> PairScores:
        """Create an empty list of pairs of `nodes` clients."""
        none = torch.empty(0, dtype=torch.long)
        return cls(none, torch.empty(0, dtype=torch.float64), none, nodes)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return R and N as matrices for each receiver, float64 and long [m, m, m]; both 0 for pairs not observed."""
        m = self.nodes
        receivers, larger, smaller = self.codes // m**2, self.codes // m % m, self.codes % m
        scores, counts = torch.zeros(m, m, m, dtype=torch.float64), torch.zeros(m, m, m, dtype=torch.long)
        for first, second in ((larger, smaller), (smaller, larger)):
            scores[receivers, first, second], counts[receivers, first, second] = self.scores, self.counts
        return scores, counts

    def __len__(self) -> int:
        return len(self.codes)

    def read(self, receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return R of pairs, float64 [e]; NaN if a receiver has not observed a pair, or its two clients are the same.

        Args:
            receivers: receiver of each pair, long [e].
            first: one client of each pair, long [e].
            second: the other client of each pair, long [e].
        """
        codes = self._coded(receivers, first, second)
        if not len(self):
            return torch.full(codes.shape, torch.nan, dtype=torch.float64)
        at = torch.searchsorted(self.codes, codes).clamp_(max=len(self) - 1)
        return torch.where(self.codes[at] == codes, self.scores[at], torch.nan)

    def friends(self, received: Links, receivers: Tensor, clients: Tensor) -> Tensor:
        """Return the friends of clients at receivers: the most similar ones of the clients received in this round.

        Args:
            received: links over which models are received in this round, those of active receivers to themselves
                included.
            receivers: receivers that look for a friend, long [e].
            clients: clients whose friends are wanted, long [e].

        Returns:
            The friends, long [e], the lowest id among equals; -1 if no pair with a received client was observed.
        """
        friends = torch.full_like(clients, -1)
        for links in _blocks(received.count[receivers]):
            which, others = _senders_of(received, receivers[links])
            scores = self.read(receivers[links][which], clients[links][which], others)
            best = torch.full(friends[links].shape, -torch.inf, dtype=torch.float64)
            best = best.scatter_reduce(0, which, scores.nan_to_num(nan=-torch.inf), "amax")
            winners = scores == best[which]  # NaN is never equal
            lowest = torch.full_like(friends[links], self.nodes)
            lowest = lowest.scatter_reduce(0, which[winners], others[winners], "amin")
            friends[links] = torch.where(lowest < self.nodes, lowest, -1)
        return friends

    def with_observed(self, received: Links, score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> PairScores:
        """Update the running means with all pairs of clients that a receiver receives from in this round.

        Args:
            received: links over which updates are received in this round, those of receivers to themselves included.
            score: (receivers, first, second), each long [e], first < second, -> scores [e] of these pairs; NaN: not
                observed.
        """
        m = self.nodes
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        done = 0
        for start, stop in _receiver_blocks(received):
            receivers, first, second = _pairs(received, start, stop)
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
        """Add observed scores to the entries from low to high; the observed codes ascend."""
        former, scores, counts = self._slice(low, high)
        if not torch.equal(former, codes):
            together = torch.cat([former, codes]).unique()
            scores, counts = _spread(together, former, scores), _spread(together, former, counts)
            at = torch.searchsorted(together, codes)
        else:
            together, at = former, torch.arange(len(codes))
        n = counts[at]
        scores = scores.index_put((at,), (n * scores[at] + seen) / (n + 1))
        return together, scores, counts.index_put((at,), n + 1)

    def _coded(self, receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return (receivers * self.nodes + torch.maximum(first, second)) * self.nodes + torch.minimum(first, second)


def distinct_pairs(received: Links) -> Links:
    """Return the pairs of clients that have a common receiver, as links with the larger id as receiver.

    Args:
        received: links over which updates are received, those of receivers to themselves included.

    Examples:
        >>> received = Links.of(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 0, 1]), nodes=3)
        >>> pairs = distinct_pairs(received)
        >>> pairs.receivers.tolist(), pairs.senders.tolist()
        ([1], [0])
    """
    codes = torch.empty(0, dtype=torch.long)
    for start, stop in _receiver_blocks(received):
        _, first, second = _pairs(received, start, stop)
        codes = torch.cat([codes, (second * received.rows + first).unique()]).unique()
    return Links.coded(codes, received.rows)


def count_pairs(received: Tensor) -> int:
    """Count the pairs of senders of all receivers, d (d - 1) / 2 for each.

    Args:
        received: d, the number of senders of each receiver, itself included, long [n].
    """
    return int((received * (received - 1)).sum()) // 2


def _receiver_blocks(received: Links) -> Iterator[tuple[int, int]]:
    """Yield ranges of receivers [start, stop) with at most `BLOCK` pairs each, or one receiver."""
    for some in _blocks(received.count * (received.count - 1) // 2):
        yield some.start, some.stop


def _blocks(sizes: Tensor) -> Iterator[slice]:
    """Yield slices of entries whose sizes sum to at most `BLOCK`, or of a single entry."""
    ends, start, taken = sizes.cumsum(0), 0, 0
    while start < len(sizes):
        stop = max(start + 1, int(torch.searchsorted(ends, taken + BLOCK, right=True)))
        yield slice(start, stop)
        start, taken = stop, int(ends[stop - 1])


def _senders_of(received: Links, receivers: Tensor) -> tuple[Tensor, Tensor]:
    """List the senders of some receivers: an index into `receivers` and the sender of each, long [e]."""
    counts = received.count[receivers]
    which = torch.arange(len(receivers)).repeat_interleave(counts)
    inside = torch.arange(len(which)) - (counts.cumsum(0) - counts)[which]
    return which, received.senders[received.starts[receivers][which] + inside]


def _pairs(received: Links, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
    """List the pairs of senders of receivers [start, stop), by code: receivers, smaller and larger ids, long [e]."""
    links = slice(int(received.starts[start]), int(received.starts[stop]))
    receivers, senders = received.receivers[links], received.senders[links]
    before = torch.arange(links.start, links.stop) - received.starts[receivers]  # senders before this one
    link = torch.arange(len(senders)).repeat_interleave(before)
    inside = torch.arange(len(link)) - (before.cumsum(0) - before)[link]
    first = senders[(link - before[link]) + inside]
    return receivers[link], first, senders[link]


def _spread(together: Tensor, former: Tensor, values: Tensor) -> Tensor:
    """Spread the values of former codes over a longer list of codes; new codes get 0."""
    return values.new_zeros(len(together)).index_put((torch.searchsorted(together, former),), values)
