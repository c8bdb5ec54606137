"""pFedGraph's average: weights from similarities of the clients' changes and from numbers of samples."""

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
    """The average weighted by the collaboration graph of pFedGraph (Ye et al., ICML 2023, eq. 4).

        W_i = argmin over x on the simplex of  sum_j x_j S_ij + alpha ||x - p||^2
        S_ij = -cos(w_i - w0, w_j - w0)

    W_i is row i of the mixing matrix, over the models that client i selects (all neighbours with `Gossip`, `k: all`)
    and its own; p are their shares of the training samples, and w0 is the client's first model of the run. The
    objective `PFedGraph` is the other half of the method.

    Args:
        alpha: weight of the shares of samples, above 0; with a large one W_i is near p.
        alike: cosines above this count as 1 (0.9 in the authors' code); 1 leaves them as they are.
    """

    supports_servers = False
    supports_clock = True
    row_sets = {"initial": "models"}

    def __init__(self, alpha: float = 0.8, alike: float = 1.0) -> None:
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"aggregation.alpha={alpha}; it must be above 0")
        if not -1 <= alike <= 1:
            raise UserError(f"aggregation.alike={alike}; it is a cosine, between -1 and 1")
        self.alpha, self.alike = alpha, alike

    def start(self, federation: Federation) -> None:
        """Refuse a substitution that mixes stored rows, which cannot be compared with models of this round."""
        refuse_stored_rows(federation, self, "compares")

    def on_weigh(self, round: Round) -> None:
        """Write the rows of the collaboration graph; a model with several votes has its samples as many times."""
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
