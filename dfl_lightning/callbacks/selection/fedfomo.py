"""FedFomo: ask for the models that have improved one's own most so far, and now and then for others."""

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
    """The `k` neighbours of the highest affinity, the sum of what their models improved (arXiv 2012.08565, section 3).

    A client chooses the `k` neighbours one after the other: each time the one of the highest affinity that is left, or
    with probability epsilon a random one. It fetches their models. What a model w_j is worth is its gain on the
    client's validation data per distance, `(L(w0) - L(w_j)) / ||w_j - w0||`, where w0 is the client's model from before
    the round (eq. 4). Affinities add up these numbers, signed, over the absolute value of their sum. With
    `aggregation: FirstOrder`, models are averaged by the positive ones. Ties are broken at random.

    Args:
        k: models to fetch (M).
        epsilon: probability of a random neighbour, for each of the `k`.
        decay: what epsilon loses in every round, down to 0.
    """

    k: int  # a number only: with all in every round there would be no choice
    supports_servers = False
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
        """Propose `k` of the active neighbours, each the one of the highest affinity or a random one."""
        up = round.available.between(senders=round.active)
        chance = max(0.0, self.epsilon - self.decay * round.index)
        affinity, limits = self.affinity.read(up, 0.0), self.limits(round)
        preferred = affinity.unique(return_inverse=True)[1] + round.draws(up, "fedfomo ties") / 2
        if chance == 0:
            round.candidates = up.keep(up.top(preferred, limits))
            return
        clients, choices = Links.loops(round.clients_only), min(int(limits.max()), int(up.count.max()))
        explores = [round.draws(clients, "fedfomo explores", place) < chance for place in range(choices)]
        drawn = round.draws(up, "fedfomo explored")
        round.candidates = up.keep(epsilon_greedy(preferred, drawn, explores, up, limits))

    def on_compare(self, round: Round) -> None:
        """Measure the gains of the models fetched, and of the client's own."""
        itself = Links.loops(round.receivers & (round.candidates.count > 0))
        seen = round.candidates.union(itself)
        gains = gains_of(round, seen)
        round.scores = seen.spread(gains, round.candidates)
        round.own_scores = itself.sum(seen.spread(gains, itself).nan_to_num(nan=0.0))
        step = affinity_step(gains, seen)
        self.affinity.add(round.candidates, seen.spread(step, round.candidates))

    def on_select(self, round: Round) -> None:
        """Select all that were fetched."""
        round.selected = round.candidates
