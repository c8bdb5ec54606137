"""A communication graph as a list of links, with set operations and sums over the links of each receiver."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dfl_lightning.links.draws import uniform
from dfl_lightning.links.highest import mark_highest


class Links:
    """An immutable list of E different pairs (receiver, sender), ordered by receiver, then by sender.

    Values of links are plain tensors [E] in the order of the list, so that one mask narrows both. Methods that narrow
    or extend the list return a new one. Work is in proportion to the number of links, except for dense matrices.

    Args:
        receivers: long [E], ascending, 0 to n - 1.
        senders: long [E], ascending for each receiver, 0 to P - 1.
        nodes: number of nodes that may receive, n.
        rows: number of rows that may be sent, P; default n.

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

    # --- constructors -------------------------------------------------------------------------------------------------
    @classmethod
    def of(cls, receivers: Tensor, senders: Tensor, nodes: int, rows: int | None = None) -> Links:
        """Build links from pairs in any order; repeated pairs count once.

        Args:
            receivers: long [e].
            senders: long [e].
            nodes: number of nodes n.
            rows: number of rows P; default n.
        """
        width = nodes if rows is None else rows
        return Links.coded((receivers * width + senders).unique(), nodes, rows)

    @staticmethod
    def coded(codes: Tensor, nodes: int, rows: int | None = None) -> Links:
        """Build links from their ascending `codes`.

        Args:
            codes: receiver * P + sender of each link, long [E], ascending.
            nodes: number of nodes n.
            rows: number of rows P; default n.
        """
        width = nodes if rows is None else rows
        receivers = codes.div(max(1, width), rounding_mode="floor")
        return Links(receivers, codes - receivers * width, nodes, rows)

    @classmethod
    def empty(cls, nodes: int, rows: int | None = None) -> Links:
        """Build a list without links.

        Args:
            nodes: number of nodes n.
            rows: number of rows P; default n.
        """
        empty = torch.empty(0, dtype=torch.long)
        return Links(empty, empty, nodes, rows)

    @classmethod
    def complete(cls, nodes: int) -> Links:
        """Link each node to all others; `AllPairs` does the same without a list."""
        receivers, senders = torch.arange(nodes).repeat_interleave(nodes - 1), torch.arange(nodes - 1).repeat(nodes)
        return Links(receivers, senders + (senders >= receivers), nodes)

    @classmethod
    def loops(cls, nodes: Tensor) -> Links:
        """Link some nodes to themselves.

        Args:
            nodes: True for the nodes that are linked, bool [n].

        Examples:
            >>> Links.loops(torch.tensor([True, False, True])).senders.tolist()
            [0, 2]
        """
        linked = torch.nonzero(nodes).squeeze(1)
        return Links(linked, linked, len(nodes))

    @classmethod
    def from_mask(cls, mask: Tensor) -> Links:
        """Build links from a matrix, bool [n, P], receiver by sender, that is True for each link."""
        receivers, senders = mask.nonzero(as_tuple=True)
        return Links(receivers, senders, *mask.shape)

    # --- the list -----------------------------------------------------------------------------------------------------
    @property
    def receivers(self) -> Tensor:
        """The receiver of each link, long [E]."""
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

    # --- set operations -----------------------------------------------------------------------------------------------
    def keep(self, where: Tensor) -> Links:
        """Return the links that a mask, bool [E], or ascending indices, long, select; itself if a mask selects all."""
        if where.dtype == torch.bool and bool(where.all()):
            return self
        return Links(self.receivers[where], self.senders[where], self.nodes, self.rows)

    def between(self, receivers: Tensor | None = None, senders: Tensor | None = None) -> Links:
        """Return the links between some receivers and some senders.

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
            groups: group of each node, long [n].

        Examples:
            >>> Links.complete(4).within_groups(torch.tensor([0, 1, 0, 0])).heard_by(2).tolist()
            [0, 3]
        """
        return self.keep(groups[self.receivers] == groups[self.senders])

    def count_alike(self, groups: Tensor) -> Tensor:
        """Count each node's senders in its own group, long [n].

        Args:
            groups: group of each node, long [n].
        """
        return self.within_groups(groups).count

    def find(self, others: Links) -> Tensor:
        """Find the index of each of the other links in this list, long [len(others)]; -1 if it is not here."""
        if others is self:
            return torch.arange(len(self))
        return self.places(others.receivers, others.senders)

    def places(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Find the index of each pair in this list, long [e]; -1 if it is not here.

        Args:
            receivers: long [e].
            senders: long [e].
        """
        codes = receivers * self.rows + senders
        if not len(self):
            return torch.full_like(codes, -1)
        index = torch.searchsorted(self.codes, codes).clamp_(max=len(self) - 1)
        return torch.where((self.codes[index] == codes) & (senders < self.rows), index, -1)

    def within(self, others: Links) -> Tensor:
        """Mark these links that are among the others, bool [E]."""
        return others.find(self) >= 0

    def union(self, others: Links) -> Links:
        """Return the links that are in at least one of the two lists.

        Raises:
            ValueError: the lists have different numbers of nodes or rows.
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
        """Arrange the values of these links in the order of another list, [len(links)].

        Args:
            values: one for each of these links, [E].
            links: the other list.
            fill: value for links that are not in this list.
        """
        return self._pick(values, self.find(links), fill)

    def look_up(self, values: Tensor, receivers: Tensor, senders: Tensor, fill: float = float("nan")) -> Tensor:
        """Return the values of pairs in any order, [e].

        Args:
            values: one for each of these links, [E].
            receivers: long [e].
            senders: long [e].
            fill: value for pairs that are not in this list.

        Examples:
            >>> links = Links.complete(3)
            >>> links.look_up(torch.arange(6.0), links.senders, links.receivers)  # the same pairs the other way round
            tensor([2., 4., 0., 5., 1., 3.])
        """
        return self._pick(values, self.places(receivers, senders), fill)

    def _pick(self, values: Tensor, indices: Tensor, fill: float) -> Tensor:
        """Return the values at some indices, `fill` at index -1."""
        if not len(values):
            return values.new_full((len(indices),), fill)
        return torch.where(indices >= 0, values[indices], fill)

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
        """The index of each receiver's first link in the list, long [n + 1]; the last entry is E."""
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
        """Mark the receivers, bool [n], that have at least one link for which a mask, bool [E], is True."""
        marked = torch.zeros(self.nodes, dtype=torch.bool)
        marked[self.receivers[where]] = True
        return marked

    def mean(self, values: Tensor) -> Tensor:
        """Average over each receiver's links, [n]; NaN for a receiver without links."""
        return self.sum(values) / self.count

    def highest(self, values: Tensor) -> Tensor:
        """Return the largest value of each receiver's links, [n]; -infinity for a receiver without links."""
        return torch.segment_reduce(values, "max", offsets=self.starts, initial=-torch.inf)

    def softmax(self, values: Tensor, temperature: float = 1.0, times: Tensor | None = None) -> Tensor:
        """Compute weights times * exp(value / temperature), scaled to sum to 1 for each receiver, float64 [E].

        Args:
            values: [E]; a value is ignored if its `times` is 0.
            temperature: above 0.
            times: how often each link counts, [E], 0 or more; default once. If all links of a receiver count 0 times,
                their weights are 0.

        Raises:
            ValueError: the temperature is not above 0.
        """
        if not temperature > 0:
            raise ValueError(f"a temperature must be positive, not {temperature}")
        values = values.double()
        weights = torch.ones_like(values) if times is None else times.double()
        counted = weights > 0
        values = values.masked_fill(~counted, -torch.inf)
        # The largest value is subtracted first, so that neither a tiny temperature nor large values overflow.
        shifted = ((values - self.highest(values)[self.receivers]) / temperature).masked_fill(~counted, -torch.inf)
        shares = weights * shifted.exp()
        total = self.sum(shares)
        return shares / torch.where(total > 0, total, 1.0)[self.receivers]

    def top(self, values: Tensor, k: int | Tensor) -> Tensor:
        """Mark each receiver's k links with the highest values, bool [E].

        A NaN is never marked. Of equal values, those of the lowest senders come first.

        Args:
            values: [E].
            k: number of links, the same for all receivers or one for each, long [n]; a receiver that has fewer keeps
                all.
        """
        limits = k if isinstance(k, Tensor) else torch.full((self.nodes,), k)
        return mark_highest(values, self.starts, limits)

    # --- draws --------------------------------------------------------------------------------------------------------
    def uniform(self, seed: int | Tensor) -> Tensor:
        """Draw a number in [0, 1) for each link, float64 [E], that depends on the seed and the link's two ends only.

        The numbers stay the same if the graph gains or loses other links.

        Args:
            seed: a seed from `stream_seed`, one for all links or one for each receiver, long [n].
        """
        return uniform(self.receivers, self.senders, seed)

    def draw(self, k: int | Tensor, seed: int | Tensor) -> Links:
        """Draw k links of each receiver, every set of k equally likely; all links of a receiver that has at most k.

        Args:
            k: number of links, the same for all receivers or one for each node, long [n].
            seed: a seed from `stream_seed`, one for all links or one for each receiver, long [n].
        """
        if bool((self.count <= k).all()):
            return self
        return self.keep(self.top(-self.uniform(seed), k))

    # --- matrices -----------------------------------------------------------------------------------------------------
    def dense(self, values: Tensor, fill: float = float("nan")) -> Tensor:
        """Return the values as a matrix [n, P], receiver by sender; only for small federations.

        Args:
            values: [E].
            fill: value of pairs that are not linked.
        """
        matrix = values.new_full((self.nodes, self.rows), fill)
        matrix[self.receivers, self.senders] = values
        return matrix

    @property
    def mask(self) -> Tensor:
        """The links as a matrix, bool [n, P], receiver by sender; only for small federations."""
        return self.dense(torch.ones(len(self), dtype=torch.bool), False)
