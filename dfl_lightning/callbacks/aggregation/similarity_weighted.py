"""pFedGraph's average: weights from similarities of what was learned and from numbers of samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.base import Aggregation, refuse_stored_rows
from dfl_lightning.functional import graph_rows
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class SimilarityWeighted(Aggregation):
    """Weights nearest to shares of samples plus cosines (pFedGraph, Ye et al., ICML 2023, eq. 4).

    Row i of the mixing matrix minimises `sum_j x_j S_ij + alpha ||x - p||^2` over the simplex, with p the shares of
    samples and `S_ij = -cos(w_i - w0, w_j - w0)`, w0 the model that all clients began the run with. A client averages
    the models of those that its selection names (all neighbours: `Gossip`, `k: all`) and its own. The objective
    `PFedGraph` is the other half of the method.

    Args:
        alpha: weight of the shares of samples, above 0; a large one gives their plain average.
        alike: cosines above this count as 1 (0.9 in the authors' code); 1 leaves them as they are.
    """

    supports_servers = False
    row_sets = {"initial": "models"}

    def __init__(self, alpha: float = 0.8, alike: float = 1.0) -> None:
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"aggregation.alpha={alpha}; it must be above 0")
        if not -1 <= alike <= 1:
            raise UserError(f"aggregation.alike={alike}; it is a cosine, between -1 and 1")
        self.alpha, self.alike = alpha, alike

    def start(self, federation: Federation) -> None:
        """Refuse rows that are no client's model of this round, which cannot be compared."""
        refuse_stored_rows(federation, self, "compares")

    def on_weigh(self, round: Round) -> None:
        """Write the rows of the graph; a row that stands in for several clients has their samples."""
        voted = round.votes > 0
        links = Links(round.voters.receivers[voted], round.voters.senders[voted], round.num_nodes)
        cosines = round.compare("trained", links, relative_to="initial").cosines
        cosines = torch.where(cosines > self.alike, 1.0, cosines)
        cosines = torch.where(links.receivers == links.senders, 1.0, cosines.nan_to_num(nan=0.0))
        sizes = torch.zeros(round.num_nodes, dtype=torch.float64)
        sizes[: round.num_clients] = round.data.sizes("train").double()
        shares = round.votes[voted] * sizes[links.senders]
        round.weights = torch.zeros_like(round.votes)
        round.weights[voted] = graph_rows(cosines, shares, links, self.alpha)
