"""A communication graph as a list of pairs, and sums over them for each receiver: work in proportion to the links."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from dfl_lightning.links.draws import uniform

BLOCK = 2**22
"""Entries of a matrix that is made at a time, where receivers with about as many senders are taken together."""


class Links:
    """Pairs (receiver, sender), ordered by receiver, then by sender; no pair twice.

    A number for each link is a plain tensor beside the list, [E], and is narrowed by the same mask. A list never
    changes: what narrows it makes another one.

    Args:
        receivers: long [E], ascending, 0 to n - 1.
        senders: long [E], ascending for each receiver, 0 to P - 1.
        nodes: n, how many receive.
        rows: P, how many rows may be sent; default n.

    Examples:
        >>> links = Links.complete(3)
        >>> links.receivers.tolist(), links.senders.tolist()
        ([0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1])
        >>> best = links.keep(links.top(torch.tensor([0.1, 0.9, 0.5, 0.5, torch.nan, 0.2]), k=1))
        >>> best.senders.tolist()
        [2, 0, 1]
    """

    def __init__(self, receivers: Tensor, senders: Tensor, nodes: int, rows: int | None = None) -> None:
        self._ends = receivers, senders
        self.nodes = nodes
        self.rows = nodes if rows is None else rows

    # --- how they are made --------------------------------------------------------------------------------------------
    @classmethod
    def of(cls, receivers: Tensor, senders: Tensor, nodes: int, rows: int | None = None) -> Links:
        """Build links from pairs in any order; a pair that is there twice counts once.

        Args:
            receivers: long [e].
            senders: long [e].
            nodes: n.
            rows: P; default n.
        """
        width = nodes if rows is None else rows
        return Links.coded((receivers * width + senders).unique(), nodes, rows)

    @staticmethod
    def coded(codes: Tensor, nodes: int, rows: int | None = None) -> Links:
        """Build pairs from their ascending `codes`, long [E].

        Args:
            codes: receiver * P + sender.
            nodes: n.
            rows: P; default n.
        """
        width = nodes if rows is None else rows
        receivers = codes.div(max(1, width), rounding_mode="floor")
        return Links(receivers, codes - receivers * width, nodes, rows)

    @classmethod
    def empty(cls, nodes: int, rows: int | None = None) -> Links:
        """Build a list of no links.

        Args:
            nodes: n.
            rows: P; default n.
        """
        empty = torch.empty(0, dtype=torch.long)
        return Links(empty, empty, nodes, rows)

    @classmethod
    def complete(cls, nodes: int) -> Links:
        """Let all nodes receive from all others; see `AllPairs` for the same without a list."""
        receivers, senders = torch.arange(nodes).repeat_interleave(nodes - 1), torch.arange(nodes - 1).repeat(nodes)
        return Links(receivers, senders + (senders >= receivers), nodes)

    @classmethod
    def loops(cls, nodes: Tensor) -> Links:
        """Link some nodes to themselves.

        Args:
            nodes: which, bool [n].

        Examples:
            >>> Links.loops(torch.tensor([True, False, True])).senders.tolist()
            [0, 2]
        """
        own = torch.nonzero(nodes).squeeze(1)
        return Links(own, own, len(nodes))

    @classmethod
    def from_mask(cls, mask: Tensor) -> Links:
        """Build the links where a matrix holds, for those who think in matrices: bool [n, P], receiver by sender."""
        receivers, senders = mask.nonzero(as_tuple=True)
        return Links(receivers, senders, *mask.shape)

    # --- the list -----------------------------------------------------------------------------------------------------
    @property
    def receivers(self) -> Tensor:
        """Who receives, of each link, long [E]."""
        return self._ends[0]

    @property
    def senders(self) -> Tensor:
        """The sender of each link, long [E]."""
        return self._ends[1]

    def __len__(self) -> int:
        return len(self.receivers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} links of {self.nodes} nodes)"

    @cached_property
    def codes(self) -> Tensor:
        """A number for each link, receiver * P + sender, ascending, long [E]."""
        return self.receivers * self.rows + self.senders

    # --- as sets ------------------------------------------------------------------------------------------------------
    def keep(self, where: Tensor) -> Links:
        """Return the links where bool [E] holds, the list itself where all of them do; or those at ascending places."""
        if where.dtype == torch.bool and bool(where.all()):
            return self
        return Links(self.receivers[where], self.senders[where], self.nodes, self.rows)

    def between(self, receivers: Tensor | None = None, senders: Tensor | None = None) -> Links:
        """Return the links of some receivers and senders.

        Args:
            receivers: bool [n]; None: all.
            senders: bool [P]; None: all.
        """
        if receivers is None and senders is None:
            return self
        kept = torch.ones(len(self), dtype=torch.bool)
        if receivers is not None:
            kept &= receivers[self.receivers]
        if senders is not None:
            kept &= senders[self.senders]
        return self.keep(kept)

    def within_groups(self, groups: Tensor) -> Links:
        """Return the links between nodes of the same group.

        Args:
            groups: of each node, long [n].

        Examples:
            >>> Links.complete(4).within_groups(torch.tensor([0, 1, 0, 0])).heard_by(2).tolist()
            [0, 3]
        """
        return self.keep(groups[self.receivers] == groups[self.senders])

    def count_alike(self, groups: Tensor) -> Tensor:
        """Count the senders of its own group that each node has, long [n].

        Args:
            groups: of each node, long [n].
        """
        return self.within_groups(groups).count

    def find(self, others: Links) -> Tensor:
        """Find where each of the others is in this list, long [len(others)]; -1 where it is not."""
        if others is self:
            return torch.arange(len(self))
        return self.places(others.receivers, others.senders)

    def places(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Find where pairs are in this list, long [e]; -1 where they are not.

        Args:
            receivers: long [e].
            senders: long [e].
        """
        codes = receivers * self.rows + senders
        if not len(self):
            return torch.full_like(codes, -1)
        at = torch.searchsorted(self.codes, codes).clamp_(max=len(self) - 1)
        return torch.where((self.codes[at] == codes) & (senders < self.rows), at, -1)

    def within(self, others: Links) -> Tensor:
        """Tell which of these links are among the others, bool [E]."""
        return others.find(self) >= 0

    def union(self, others: Links) -> Links:
        """Return the links of either list.

        Raises:
            ValueError: the lists are of different nodes or rows.
        """
        if (self.nodes, self.rows) != (others.nodes, others.rows):
            shapes = f"{self.nodes} x {self.rows} and {others.nodes} x {others.rows}"
            raise ValueError(f"lists of links between different nodes have no union: {shapes}")
        if not len(others):
            return self
        if not len(self):
            return others
        return Links.coded(torch.cat([self.codes, others.codes]).unique(), self.nodes, self.rows)

    def intersection(self, others: Links) -> Links:
        """Return the links of both lists."""
        return self.keep(self.within(others))

    def difference(self, others: Links) -> Links:
        """Return the links that are not among the others."""
        return self.keep(~self.within(others)) if len(others) else self

    def spread(self, values: Tensor, links: Links, fill: float = float("nan")) -> Tensor:
        """Put the numbers of these links beside another list: `fill` for links that this one lacks.

        Args:
            values: [E], beside these links.
            links: the other list.
            fill: for what is not here.
        """
        return self._picked(values, self.find(links), fill)

    def look_up(self, values: Tensor, receivers: Tensor, senders: Tensor, fill: float = float("nan")) -> Tensor:
        """Return the numbers of these links for pairs in any order, [e]: `fill` for pairs that are not in this list.

        Args:
            values: [E], beside these links.
            receivers: long [e].
            senders: long [e].
            fill: for what is not here.

        Examples:
            >>> links = Links.complete(3)
            >>> links.look_up(torch.arange(6.0), links.senders, links.receivers)  # the same pairs the other way round
            tensor([2., 4., 0., 5., 1., 3.])
        """
        return self._picked(values, self.places(receivers, senders), fill)

    def _picked(self, values: Tensor, at: Tensor, fill: float) -> Tensor:
        if not len(values):
            return values.new_full((len(at),), fill)
        return torch.where(at >= 0, values[at], fill)

    # --- for each receiver --------------------------------------------------------------------------------------------
    @cached_property
    def count(self) -> Tensor:
        """The number of senders of each node, long [n]."""
        return torch.bincount(self.receivers, minlength=self.nodes)

    @cached_property
    def num_receivers(self) -> Tensor:
        """The number of receivers of each sender, long [P]."""
        return torch.bincount(self.senders, minlength=self.rows)

    @cached_property
    def starts(self) -> Tensor:
        """Where each receiver's links begin in the list, long [n + 1]; the last entry is E."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.count.cumsum(0)])

    def heard_by(self, receiver: int) -> Tensor:
        """Return the senders of a node, long."""
        return self.senders[self.starts[receiver] : self.starts[receiver + 1]]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over each receiver's links, [n]; 0 for a receiver without links."""
        if values.dtype == torch.bool:
            values = values.long()
        if not values.is_floating_point():
            return torch.zeros(self.nodes, dtype=values.dtype).index_add_(0, self.receivers, values)
        return torch.segment_reduce(values, "sum", offsets=self.starts, initial=0)

    def any(self, where: Tensor) -> Tensor:
        """Tell whether bool [E] holds for any link of a receiver, bool [n]."""
        found = torch.zeros(self.nodes, dtype=torch.bool)
        found[self.receivers[where]] = True
        return found

    def mean(self, values: Tensor) -> Tensor:
        """Average over each receiver's links, [n]; NaN for a receiver without links."""
        return self.sum(values) / self.count

    def highest(self, values: Tensor) -> Tensor:
        """Return the largest number of each receiver's links, [n]; -infinity for a receiver without links."""
        return torch.segment_reduce(values, "max", offsets=self.starts, initial=-torch.inf)

    def softmax(self, values: Tensor, temperature: float = 1.0, times: Tensor | None = None) -> Tensor:
        """Scale times * exp(value / temperature) so that they sum to 1 for each receiver, float64 [E].

        Args:
            values: [E]; read only where `times` is above 0.
            temperature: above 0.
            times: how often each link counts, [E], 0 or more; a receiver without any gets zeros. Default: once each.

        Raises:
            ValueError: the temperature is not above 0.
        """
        if not temperature > 0:
            raise ValueError(f"a temperature must be positive, not {temperature}")
        values = values.double()
        weights = torch.ones_like(values) if times is None else times.double()
        counted = weights > 0
        values = values.masked_fill(~counted, -torch.inf)
        # the largest is subtracted first, so that neither a tiny temperature nor large values overflow
        shifted = ((values - self.highest(values)[self.receivers]) / temperature).masked_fill(~counted, -torch.inf)
        shares = weights * shifted.exp()
        total = self.sum(shares)
        return shares / torch.where(total > 0, total, 1.0)[self.receivers]

    def top(self, values: Tensor, k: int | Tensor) -> Tensor:
        """Select each receiver's k links with the highest values, bool [E]; NaN never, equals by the lowest sender.

        Args:
            values: [E].
            k: how many of each receiver's links (all where it has fewer), or a number for each receiver, long [n].
        """
        limits = k if isinstance(k, Tensor) else torch.full((self.nodes,), k)
        known = ~values.isnan()
        # a known value of -infinity still comes before the places that are empty
        values = values.double().clamp(min=torch.finfo(torch.float64).min).masked_fill(~known, -torch.inf)
        taken = known & (limits >= self.count)[self.receivers]
        for places, inside, receivers in self._blocks((limits > 0) & (limits < self.count)):
            block = values[places].masked_fill_(~inside, -torch.inf)
            limit = limits[receivers]
            highest = block.topk(int(limit.max()), dim=1).values
            last = highest.gather(1, (limit - 1)[:, None])
            above, equal = block > last, (block == last) & inside
            chosen = above | (equal & (equal.cumsum(1) <= (limit - above.sum(1))[:, None]))
            taken[places[chosen]] = True
        return taken & known

    def _blocks(self, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Receivers with about as many senders, as a matrix each: places in the list [r, w], which are theirs, who."""
        widths = (2 ** self.count.clamp(min=1).double().log2().ceil()).long()
        for width in widths[wanted].unique().tolist():
            receivers = torch.nonzero((widths == width) & wanted).squeeze(1)
            for some in receivers.split(max(1, BLOCK // width)):
                count = self.count[some]
                offsets = torch.arange(int(count.max()))
                inside = offsets < count[:, None]
                yield (self.starts[some][:, None] + offsets).clamp_(max=len(self) - 1), inside, some

    # --- draws --------------------------------------------------------------------------------------------------------
    def uniform(self, seed: int) -> Tensor:
        """Draw a number for each link, float64 [E] in [0, 1), from the seed and the two ends of the link alone.

        A graph with a link more draws the same for all others.

        Args:
            seed: as `stream_seed` gives it.
        """
        return uniform(self.receivers, self.senders, seed)

    def draw(self, k: int | Tensor, seed: int) -> Links:
        """Choose k links of each receiver at random, every set of k equally likely; all where there are not more.

        Args:
            k: the number, or one for each node, long [n].
            seed: as `stream_seed` gives it.
        """
        if bool((self.count <= k).all()):
            return self  # a server receives from all clients
        return self.keep(self.top(-self.uniform(seed), k))

    # --- matrices -----------------------------------------------------------------------------------------------------
    def dense(self, values: Tensor, fill: float = float("nan")) -> Tensor:
        """Return a matrix [n, P], receiver by sender, `fill` where there is no link: for small federations.

        Args:
            values: [E].
            fill: elsewhere.
        """
        matrix = values.new_full((self.nodes, self.rows), fill)
        matrix[self.receivers, self.senders] = values
        return matrix

    @property
    def mask(self) -> Tensor:
        """A matrix, bool [n, P], receiver by sender: for small federations."""
        return self.dense(torch.ones(len(self), dtype=torch.bool), False)
