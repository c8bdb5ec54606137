"""FedeRiCo's sampler: learn from models with a low loss on the client's own data, and sometimes from random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, Selection
from dfl_lightning.functional import averaged_losses, collaborator_weights
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FedeRiCo(Selection):
    """The choice of collaborators by averaged losses (FedeRiCo, Sui et al. 2022, arXiv 2210.06597).

        L_ij = (1 - beta) L_ij + beta * loss of j's model on i's training data
        w_ij = softmax_j(-L_ij)

    In each round a client fetches the models of `k` others: with probability `epsilon` random ones, else those with the
    largest w_ij. It averages them with its own; with `aggregation: ScoreWeighted` the weights include this round's
    losses. With `aggregation: FedeRiCoStep`, the paper's exchange of gradients, L is of the models from before the
    round, and collaborators are neighbours in both directions. With `prediction: Mixture` clients predict with several
    models, as in the paper. A client that was never evaluated counts as an average neighbour, and ties are broken at
    random.

    Args:
        k: number of neighbours to fetch and learn from (M).
        epsilon: probability that a client fetches random neighbours in a round.
        beta: weight of this round's loss in L, above 0 and at most 1.
    """

    k: int  # a number only: with `all` there would be no choice
    supports_servers = False
    supports_clock = True
    scores_are_weights = True
    supports_updates = True
    state = ("averages",)

    def __init__(self, k: int = 5, epsilon: float = 0.3, beta: float = 0.6) -> None:
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        if not 0 <= epsilon <= 1:
            raise UserError(f"selection.epsilon={epsilon}; it is a probability between 0 and 1")
        if not 0 < beta <= 1:
            raise UserError(f"selection.beta={beta}; it is a share above 0 and at most 1")
        self.k, self.epsilon, self.beta = k, epsilon, beta
        self.averages: LinkMemory  # L of the models evaluated so far, the receiver's own among them

    def start(self, federation: Federation) -> None:
        """Begin without averaged losses."""
        self.averages = LinkMemory.empty(federation.num_nodes)

    def on_propose(self, round: Round) -> None:
        """Propose the `k` active neighbours with the largest weights so far, or random ones in an exploring round."""
        up = round.receivable(round.available)
        if self._updates_senders(round.federation):
            up = up.keep(round.reachable.places(up.senders, up.receivers) >= 0)
        loops = Links.loops(torch.ones(round.num_nodes, dtype=torch.bool))
        explore = round.draw_uniform(loops, "federico explore") < self.epsilon
        weights = self._weights(up, unseen=1.0).masked_fill(explore[up.receivers], 0)
        ranks = weights.unique(return_inverse=True)[1]
        shuffled = ranks + round.draw_uniform(up, "federico ties") / 2  # breaks ties at random
        round.candidates = up.keep(up.top(shuffled, self.limits(round)))

    def on_compare(self, round: Round) -> None:
        """Evaluate the fetched models and the client's own, update L, and write the weights as `scores`."""
        own = Links.loops(round.candidates.count > 0)
        seen = round.candidates.union(own)
        losses = round.loss_of(seen, "models" if self._updates_senders(round.federation) else "trained")
        self.averages.write_known(seen, averaged_losses(self.averages.read(seen), losses, self.beta))
        round.scores = self._weights(round.candidates)
        round.own_scores = self._weights(Links.loops(torch.ones(round.num_nodes, dtype=torch.bool)))

    def on_select(self, round: Round) -> None:
        """Select the fetched models with a finite loss."""
        round.selected = round.candidates.keep(self.averages.read(round.candidates).isfinite())

    def collaborators(self, federation: Federation, round: int) -> tuple[Links, Tensor]:
        """Return the client itself and the `k` others in reach with the lowest L, and softmax(-L) over them."""
        own = Links.loops(torch.ones(federation.num_nodes, dtype=torch.bool))
        if not len(self.averages.links):
            return own, torch.ones(len(own), dtype=torch.float64)
        seen = self.averages.links.keep(self.averages.values.isfinite())
        others = seen.keep((seen.receivers != seen.senders) & seen.within(federation.topology.reachable(round)))
        best = others.keep(others.top(-self.averages.read(others), self.limits_in(federation)))
        links = best.union(own)
        losses = self.averages.read(links)
        unknown = links.sum(losses.isfinite()) == 0  # a client without known losses uses its own model
        times = losses.isfinite() | unknown[links.receivers]
        return links, links.softmax(-losses.masked_fill(~losses.isfinite(), 0.0), times=times)

    def _updates_senders(self, federation: Federation) -> bool:
        """Return True if the aggregation trains the models of others instead of averaging them."""
        return federation.require(Aggregation).updates_senders

    def _weights(self, links: Links, unseen: float = float("nan")) -> Tensor:
        """Return n_i w_ij for each link, float64 [E], n_i the models that i has evaluated; `unseen` for other links."""
        seen = self.averages.links
        return seen.spread(collaborator_weights(self.averages.values, seen), links, unseen)
