"""Krum and Multi-Krum: the models with the least squared distances to their nearest others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.aggregation.robust.distance_weighted import DistanceWeighted, compared, log_share
from dfl_lightning.callbacks.base import Selection, Threshold
from dfl_lightning.functional import krum_needs, krum_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.topology import most_neighbours
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Krum(DistanceWeighted):
    """The model that is nearest to the others (Krum, Blanchard et al., NeurIPS 2017, arXiv 1703.02757).

        x_i = x_k*,    k* = argmin over k of  sum of |x_k - x_l|^2 over the n - f - 2 nearest l

    The n models are those received and the client's own. The guarantee needs n > 2 f + 2. A graph in which a client
    receives some models, but never enough, is refused. In a round in which too many neighbours have dropped out, a
    client keeps its trained model, and a server its model from before the round. A model with several votes counts
    once.

    Args:
        adversaries: f, how many of the n models may be falsified, 0 or more.
        include_self: whether the receiver's own model is one of the n.
    """

    method_name = "Krum"
    against_adversaries = True
    logs = ("kept",)

    def __init__(self, adversaries: int = 1, include_self: bool = True) -> None:
        if adversaries < 0:
            raise UserError(f"aggregation.adversaries={adversaries}; it is a number of models, 0 or more")
        self.adversaries, self.include_self = adversaries, include_self
        self.kept: int | None = 1

    def start(self, federation: Federation) -> None:
        """Refuse a graph in which a node receives models, but never enough of them."""
        super().start(federation)
        needed, most = krum_needs(self.adversaries), self.most_models(federation)
        few = torch.nonzero((most > 0) & (most < needed)).squeeze(1)
        if len(few):
            m, first = federation.num_clients, int(few[0])
            who = f"client {first} has" if first < m else "the server has"
            own = ", its own included" if first < m and self.include_self else ""
            raise UserError(
                f"aggregation.adversaries={self.adversaries} needs {needed} models to choose from (2 f + 3), and {who} "
                f"{int(most[first])} at most{own}; lower it, or take a graph or a selection with more neighbours"
            )

    def most_models(self, federation: Federation) -> Tensor:
        """Return an upper bound of the models that each node can choose from in a round, long [n].

        The bound follows from the graph and the selection's limit. It is 0 for nodes that do not receive or mix models,
        such as the clients of a server.
        """
        topology, selection = federation.topology, federation.policy(Selection)
        received = most_neighbours(topology)
        by_threshold = (
            selection is not None and "threshold" in selection.reads and federation.policy(Threshold) is not None
        )
        if selection is not None and not (by_threshold and topology.budgets is None):
            received = torch.minimum(received, selection.limits_in(federation))
        if topology.num_servers:
            return received.masked_fill(~topology.servers, 0)
        return received + (received > 0) * self.include_self

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Compare and score the models, log the share that is kept, and return the weights."""
        weights = krum_weights(compared(round, voters), self.adversaries, self.kept)
        log_share(round, "kept", voters, weights > 0)
        return weights


class MultiKrum(Krum):
    """The mean of the models with the lowest Krum scores (Blanchard et al., NeurIPS 2017, arXiv 1703.02757).

        x_i = mean of the x_k with the m lowest scores,    m = n - f by default

    The score of x_k is the sum of the squared distances to its n - f - 2 nearest others, as in `Krum`.

    Args:
        adversaries: f, how many of the n models may be falsified, 0 or more.
        kept: m, how many models are averaged, 1 or more and at most n; default: n - f.
        include_self: whether the receiver's own model is one of the n.
    """

    method_name = "Multi-Krum"

    def __init__(self, adversaries: int = 1, kept: int | None = None, include_self: bool = True) -> None:
        super().__init__(adversaries, include_self)
        if kept is not None and kept < 1:
            raise UserError(f"aggregation.kept={kept}; it is a number of models, 1 or more")
        self.kept = kept
