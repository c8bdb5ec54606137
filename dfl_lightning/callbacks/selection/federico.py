"""FedeRiCo as a sampler: learn from models with a low loss on the client's own data, and explore at random."""

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
    """Neighbours by softmax(-L_ij), L the averaged loss of j's model on i's training data (FedeRiCo, arXiv 2210.06597).

    In each round a client fetches the models of `k` others: with probability `epsilon` random ones, else those with the
    largest weights. It averages them with its own, under `aggregation: ScoreWeighted` by weights that include this
    round's losses. This is the paper's choice of collaborators. With `aggregation: FedeRiCoStep`, the paper's exchange
    of gradients, L is of the models as they were before the round, and collaborators are neighbours in both directions;
    with `prediction: Mixture` clients predict with several models, as in the paper. A client never evaluated counts as
    an average neighbour, and ties are broken at random.

    Args:
        k: neighbours to fetch and learn from (M).
        epsilon: probability of a round of random neighbours.
        beta: weight of this round's loss in L.
    """

    k: int  # a number only: with all in every round there would be no choice
    supports_servers = False
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
        self.averages: LinkMemory  # L of those seen, the receiver itself among them

    def start(self, federation: Federation) -> None:
        """Begin with no model evaluated."""
        self.averages = LinkMemory.empty(federation.num_nodes)

    def on_propose(self, round: Round) -> None:
        """Propose the `k` largest weights so far, or in a round of exploration random ones, of the active ones."""
        up = round.available.between(senders=round.active)
        if self._updates_senders(round.federation):
            up = up.keep(round.reachable.places(up.senders, up.receivers) >= 0)
        loops = Links.loops(torch.ones(round.num_nodes, dtype=torch.bool))
        explore = round.draws(loops, "federico explore") < self.epsilon
        weights = self._weights(up, unseen=1.0).masked_fill(explore[up.receivers], 0)
        ranks = weights.unique(return_inverse=True)[1]
        shuffled = ranks + round.draws(up, "federico ties") / 2  # among equals the order is random
        round.candidates = up.keep(up.top(shuffled, self.limits(round)))

    def on_compare(self, round: Round) -> None:
        """Evaluate the fetched models and the client's own; `scores` are the weights computed from the losses."""
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
        """Return itself and the `k` others in reach with the lowest L, and softmax(-L) over them; see `Selection`.

        Args:
            federation: of the run.
            round: the round whose links count, 0-based.
        """
        own = Links.loops(torch.ones(federation.num_nodes, dtype=torch.bool))
        if not len(self.averages.links):
            return own, torch.ones(len(own), dtype=torch.float64)
        seen = self.averages.links.keep(self.averages.values.isfinite())
        others = seen.keep((seen.receivers != seen.senders) & seen.within(federation.topology.reachable(round)))
        best = others.keep(others.top(-self.averages.read(others), self.limits_in(federation)))
        links = best.union(own)
        losses = self.averages.read(links)
        unknown = links.sum(losses.isfinite()) == 0  # who has fetched nothing goes by its own model
        times = losses.isfinite() | unknown[links.receivers]
        return links, links.softmax(-losses.masked_fill(~losses.isfinite(), 0.0), times=times)

    def _updates_senders(self, federation: Federation) -> bool:
        """Whether the models of others are trained, and not averaged."""
        return federation.require(Aggregation).updates_senders

    def _weights(self, links: Links, unseen: float = float("nan")) -> Tensor:
        """Weights of the links, float64 [E], in units of an average one of all that the receiver has ever seen."""
        seen = self.averages.links
        return seen.spread(collaborator_weights(self.averages.values, seen), links, unseen)
