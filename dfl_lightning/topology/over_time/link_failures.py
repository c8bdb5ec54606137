"""Random failures of links in a round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.links import Links
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.randomness.random_streams import stream_seed


@dataclass(frozen=True)
class LinkFailures:
    """A random process in which links fail, each with the same probability or an exact share of a receiver's links.

    A draw depends on the seed, the round and the two ends of the link only, so that it stays the same if the graph
    gains other links.

    Attributes:
        up: probability that a link is up in a round.
        each_way: True if the two directions of an undirected link fail independently; arcs of a directed graph always
            do.
        share: share of a receiver's links that are up in a round, drawn for each receiver separately:
            exactly round(share * links) of them, halves rounded upwards.
        seed: seed of the draws.
    """

    up: float = 1.0
    each_way: bool = False
    share: float = 1.0
    seed: int = 0

    @property
    def fail(self) -> bool:
        """True if some links may be down."""
        return self.up < 1 or self.share < 1

    @property
    def one_way(self) -> bool:
        """True if an undirected link may be up in one direction only."""
        return self.share < 1 or (self.up < 1 and self.each_way)

    def describe(self) -> str:
        """Describe the process in words; empty if all links are always up.

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
        """Compute the number of links of each receiver that are up if a share of them is, long [n].

        Args:
            degrees: number of links of each receiver, long [n].

        Examples:
            >>> LinkFailures(share=0.5).numbers(torch.tensor([0, 1, 2, 3, 12]))
            tensor([0, 1, 1, 2, 6])
        """
        # A little is added, since rounding errors may put a half slightly below itself.
        return (self.share * degrees.double() + 0.5 + 1e-9).floor().long()

    def that_are_up(self, linked: Links, round: int, directed: bool) -> Links:
        """Draw the links that are up in a round.

        Args:
            linked: all links of the graph.
            round: the communication round.
            directed: True if the graph is directed, so that arcs fail independently.
        """
        if self.share < 1:
            return linked.draw(self.numbers(linked.count), stream_seed(self.seed, "link share", round))
        if self.up < 1:
            ends = linked.receivers, linked.senders
            if not (directed or self.each_way):
                ends = torch.maximum(*ends), torch.minimum(*ends)
            return linked.keep(uniform(*ends, stream_seed(self.seed, "link up", round)) < self.up)
        return linked
