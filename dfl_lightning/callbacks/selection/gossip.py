"""Gossip and its special cases: fixed neighbours, an oracle, all neighbours, local training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Gossip(Selection):
    """The choice of `k` uniformly drawn neighbours for each receiver.

        C_i = k of the neighbours of i, all sets of k with the same probability

    Local training is `k: 0`, all neighbours `k: all`, the oracle `k: all, within: cluster`, fixed neighbours
    `redraw: false`; in a server topology `k` clients take part in a round (FedAvg with sampling).

    Args:
        k: number of neighbours, or `all`; fewer if fewer are in reach.
        within: `cluster`: only clients of the receiver's own cluster, known from the data or the topology.
        redraw: draw again in each round; otherwise neighbours stay the same as long as the graph does, and one that has
            dropped out, or whose link has, is not replaced.
    """

    lists_candidates = False
    supports_clock = True

    def __init__(
        self, k: int | Literal["all"] = 10, within: Literal["cluster"] | None = None, redraw: bool = True
    ) -> None:
        if k != "all" and k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more, or all")
        self.k, self.within, self.redraw = k, within, redraw

    @classmethod
    def drawn_anew_from(cls, arguments: Mapping[str, Any]) -> int | None:
        """Return 0 if neighbours are drawn in each round, None if all or none are selected, or the first draw is kept.

        Examples:
            >>> Gossip.drawn_anew_from({"k": 3, "redraw": True})
            0
            >>> Gossip.drawn_anew_from({"k": 3, "redraw": False})
        """
        return 0 if arguments["redraw"] and arguments["k"] not in (0, "all") else None

    def start(self, federation: Federation) -> None:
        """Require clusters for `within: cluster`."""
        if self.within and federation.clusters is None:
            raise UserError(
                "selection.within=cluster needs known clusters: "
                "a clustered data.partition or 'cluster' attributes in the topology"
            )
        if self.within and federation.topology.num_servers:
            raise UserError("selection.within=cluster: a server belongs to no cluster; use a topology without servers")

    def on_propose(self, round: Round) -> None:
        """Draw before the training if there is a server: the other clients neither train nor receive models."""
        if round.num_servers:
            round.candidates = self._draw(round)
            drawn = round.candidates.num_receivers[round.jobs.owners] > 0
            round.jobs = round.jobs.take(torch.nonzero(drawn).squeeze(1))

    def on_select(self, round: Round) -> None:
        """Select the drawn neighbours of each receiver."""
        round.selected = self._draw(round)

    def _draw(self, round: Round) -> Links:
        allowed = round.candidates if self.redraw else round.federation.topology.linked(round.index)
        if self.within:
            assert round.clusters is not None
            allowed = allowed.within_groups(round.clusters)
        if self.redraw:
            drawn = round.draw_links(allowed, self.limits(round), "gossip")
        else:
            drawn = allowed.draw(self.limits(round), stream_seed(round.federation.seed, "gossip", 0))
        return drawn if allowed is round.candidates else drawn.intersection(round.candidates)
