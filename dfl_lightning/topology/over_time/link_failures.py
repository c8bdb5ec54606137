"""Which links of a graph are up in a round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.randomness.random_streams import stream_seed


@dataclass(frozen=True)
class LinkFailures:
    """Links that fail: each with its own probability, or an exact share of each receiver's.

    A draw is named by the seed, the round and the two ends of the link. It depends on no other link, so that a graph
    with one link more has the same ups and downs on all the others.

    Attributes:
        up: probability that a link is up in a round.
        each_way: whether the two directions of an undirected link go up and down separately. The arcs of a directed
            graph always do.
        share: share of a receiver's links that is up in a round, drawn for each receiver separately:
            exactly round(share * links) of them, halves upwards.
        seed: of the draws.
    """

    up: float = 1.0
    each_way: bool = False
    share: float = 1.0
    seed: int = 0

    @property
    def fail(self) -> bool:
        """Whether some links may be down."""
        return self.up < 1 or self.share < 1

    @property
    def one_way(self) -> bool:
        """Whether an undirected link may be up in one direction only."""
        return self.share < 1 or (self.up < 1 and self.each_way)

    def describe(self) -> str:
        """The process in words; empty where all links are up all the time.

        Examples:
            >>> LinkFailures(up=0.9).describe()
            'each link up with probability 0.9'
            >>> LinkFailures(share=0.8).describe()
            '80 % of the links to each receiver up'
        """
        if self.share < 1:
            return f"{100 * self.share:.6g} % of the links to each receiver up"
        what = "each direction of a link" if self.each_way else "each link"
        return f"{what} up with probability {self.up:.6g}" if self.up < 1 else ""

    def numbers(self, degrees: Tensor) -> Tensor:
        """How many links of each receiver a share keeps, long [n].

        Args:
            degrees: number of links of each receiver, long [n].

        Examples:
            >>> LinkFailures(share=0.5).numbers(torch.tensor([0, 1, 2, 3, 12]))
            tensor([0, 1, 1, 2, 6])
        """
        # the least bit more, since a half that is no binary fraction may come out below itself
        return (self.share * degrees.double() + 0.5 + 1e-9).floor().long()

    def that_are_up(self, linked: Links, round: int, directed: bool) -> Links:
        """The links that are up in a round.

        Args:
            linked: all links.
            round: the communication round.
            directed: whether the graph is.
        """
        if self.share < 1:
            return linked.draw(self.numbers(linked.count), stream_seed(self.seed, "link share", round))
        if self.up < 1:
            ends = linked.receivers, linked.senders
            if not (directed or self.each_way):
                ends = torch.maximum(*ends), torch.minimum(*ends)
            return linked.keep(uniform(*ends, stream_seed(self.seed, "link up", round)) < self.up)
        return linked
