"""FedeRiCo as a sampler: learn from models with a low loss on the client's own data, and explore at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import averaged_losses, collaborator_weights, top_k
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    pass


class FedeRiCo(Selection):
    """Neighbours by softmax(-L_ij), L the averaged loss of j's model on i's training data (FedeRiCo, arXiv 2210.06597).

    In each round a client fetches the models of `k` others: with probability `epsilon` random ones, else those with the
    largest weights. It averages them with its own, under `aggregation: ScoreWeighted` by weights that include this
    round's losses. This is the paper's choice of collaborators; its gradient exchange and its ensemble of models for
    prediction are not part of it. A client never evaluated counts as an average neighbour, and ties are broken at
    random.

    Args:
        k: neighbours to fetch and learn from (M).
        epsilon: probability of a round of random neighbours.
        beta: weight of this round's loss in L.
    """

    k: int  # a number only: with all in every round there would be no choice
    supports_servers = False
    scores_are_weights = True
    state = ("averages",)

    def __init__(self, k: int = 5, epsilon: float = 0.3, beta: float = 0.6) -> None:
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        if not 0 <= epsilon <= 1:
            raise UserError(f"selection.epsilon={epsilon}; it is a probability between 0 and 1")
        if not 0 < beta <= 1:
            raise UserError(f"selection.beta={beta}; it is a share above 0 and at most 1")
        self.k, self.epsilon, self.beta = k, epsilon, beta
        self.averages: Tensor | None = None  # L, float64 [n, n], NaN = never seen

    def on_propose(self, round: Round) -> None:
        """The `k` largest weights so far, or in a round of exploration random ones, of those that are up."""
        n = round.num_nodes
        if self.averages is None:
            self.averages = torch.full((n, n), float("nan"), dtype=torch.float64)
        up = round.available & round.active[None, :]
        weights = collaborator_weights(self.averages).nan_to_num(nan=1.0)
        draws = torch.stack(
            [torch.rand(n + 1, dtype=torch.float64, generator=round.stream("federico", i)) for i in range(n)]
        )
        explore, order = draws[:, :1] < self.epsilon, draws[:, 1:].argsort(1)
        shuffled = torch.where(explore, 0.0, weights).gather(1, order)  # top_k takes the first of equals
        chosen = top_k(shuffled, up.gather(1, order), self.limits(round))
        round.candidates = torch.zeros_like(up).scatter(1, order, chosen)

    def on_compare(self, round: Round) -> None:
        """Losses of the fetched models and of the client's own; `scores` are the weights computed from them."""
        assert self.averages is not None
        looking = round.candidates.any(1)
        pairs = round.candidates | torch.diag(looking)
        losses = round.evaluate_pairs(pairs)
        self.averages = averaged_losses(self.averages, losses, self.beta)
        round.scores = collaborator_weights(self.averages)

    def on_select(self, round: Round) -> None:
        """The fetched models with a finite loss."""
        assert self.averages is not None
        round.selected = round.candidates & self.averages.isfinite()
