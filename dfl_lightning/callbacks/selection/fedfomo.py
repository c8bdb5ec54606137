"""FedFomo: fetch the models that have improved the client's own most so far, and sometimes random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.callbacks.first_order import gains_of
from dfl_lightning.functional import affinity_step, epsilon_greedy
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FedFomo(Selection):
    """The choice of the `k` neighbours with the highest affinity (FedFomo, Zhang et al., arXiv 2012.08565, section 3).

        g_ij = (L_i(w0) - L_i(w_j)) / ||w_j - w0||          (eq. 4)
        P_ij = P_ij + g_ij / |sum_k g_ik|

    L_i is the loss on the client's validation data, and w0 its model from before the round. A client chooses the
    neighbours one after the other: each time the one with the highest affinity P_ij that is left, or with probability
    epsilon a random one. It fetches their models and updates their affinities. With `aggregation: FirstOrder` models
    are averaged in proportion to positive gains. Ties are broken at random.

    Args:
        k: number of models to fetch (M).
        epsilon: probability of a random neighbour, for each of the `k`.
        decay: decrease of epsilon in each round, down to 0.
    """

    k: int  # a number only: with `all` there would be no choice
    supports_servers = False
    supports_clock = True
    scores_are_first_order = True
    state = ("affinity",)

    def __init__(self, k: int = 5, epsilon: float = 0.3, decay: float = 0.05) -> None:
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        if not 0 <= epsilon <= 1:
            raise UserError(f"selection.epsilon={epsilon}; it is a probability between 0 and 1")
        if not decay >= 0:
            raise UserError(f"selection.decay={decay}; it is what epsilon loses in a round, 0 or more")
        self.k, self.epsilon, self.decay = k, epsilon, decay
        self.affinity: LinkMemory

    def start(self, federation: Federation) -> None:
        """Require validation data, on which gains are measured."""
        federation.require_validation("selection FedFomo")
        self.affinity = LinkMemory.empty(federation.num_nodes)

    def on_propose(self, round: Round) -> None:
        """Propose `k` active neighbours, each the one with the highest affinity that is left or a random one."""
        up = round.receivable(round.available)
        chance = max(0.0, self.epsilon - self.decay * round.index)
        affinity, limits = self.affinity.read(up, 0.0), self.limits(round)
        preferred = affinity.unique(return_inverse=True)[1] + round.draw_uniform(up, "fedfomo ties") / 2
        if chance == 0:
            round.candidates = up.keep(up.top(preferred, limits))
            return
        clients, choices = Links.loops(round.clients_only), min(int(limits.max()), int(up.count.max()))
        explores = [round.draw_uniform(clients, "fedfomo explores", choice) < chance for choice in range(choices)]
        drawn = round.draw_uniform(up, "fedfomo explored")
        round.candidates = up.keep(epsilon_greedy(preferred, drawn, explores, up, limits))

    def on_compare(self, round: Round) -> None:
        """Compute the gains of the fetched models and of the client's own as scores, and update the affinities."""
        itself = Links.loops(round.receivers & (round.candidates.count > 0))
        seen = round.candidates.union(itself)
        gains = gains_of(round, seen)
        round.scores = seen.spread(gains, round.candidates)
        round.own_scores = itself.sum(seen.spread(gains, itself).nan_to_num(nan=0.0))
        step = affinity_step(gains, seen)
        self.affinity.add(round.candidates, seen.spread(step, round.candidates))

    def on_select(self, round: Round) -> None:
        """Select all neighbours whose models were fetched."""
        round.selected = round.candidates
