"""FedFomo's average: models are weighted by how much each of them lowers the loss per distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Aggregation, Selection, mixed_terms
from dfl_lightning.callbacks.first_order import gains_of, losses_before
from dfl_lightning.functional import first_order_gain
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FirstOrder(Aggregation):
    """The average weighted by gains on validation data (FedFomo, Zhang et al., arXiv 2012.08565, eq. 3 and 4).

        W_ij = v_ij max(0, g_ij) / sum_k v_ik max(0, g_ik)
        g_ij = (L_i(w0) - L_i(w_j)) / ||w_j - w0||

    L_i is the loss on the receiver's validation data, w0 the receiver's model from before the round, and v_ij the
    number of votes of w_j; the receiver's own trained model is among the w_j. If no gain is positive, the receiver
    continues with w0; a client that receives nothing continues with its trained model. The selection `FedFomo` has
    computed the gains already; with any other selection they are computed here, for the models that are mixed.
    """

    supports_servers = False
    supports_clock = True

    def start(self, federation: Federation) -> None:
        """Require validation data, on which gains are measured."""
        federation.require_validation("aggregation FirstOrder")

    def on_weigh(self, round: Round) -> None:
        """Divide the positive gains by their sum; write zeros if there are none."""
        voters, votes = round.voters, round.votes
        others = (votes > 0) & (voters.receivers != voters.senders)
        alone = ~voters.any(others)[voters.receivers]
        positive = votes * self._gains(round, voters, votes, ~alone).nan_to_num(nan=0.0).clamp(min=0)
        positive = torch.where(alone, votes, positive)
        total = voters.sum(positive)
        round.weights = positive / torch.where(total > 0, total, 1.0)[voters.receivers]

    def on_mix(self, round: Round) -> None:
        """Average the models; restore the receiver's model from before the round if no model has a positive gain."""
        where = round.receivers
        improved = round.voters.any(round.weights != 0)  # a receiver without any vote keeps what it trained
        where = where & round.voters.any(round.votes > 0)
        kept = torch.where(improved, -1, torch.arange(round.num_nodes))[where]
        terms = mixed_terms(round, round.weights, where)
        round.mix([*terms, (Weights.of_rows(kept, round.num_nodes), "models")], into="models", where=where)

    def _gains(self, round: Round, voters: Links, votes: Tensor, wanted: Tensor) -> Tensor:
        """Return the first-order gain of each row that has a vote and is in `wanted`, float64 [E]; NaN if unknown."""
        gains = torch.full_like(votes, float("nan"))
        wanted = wanted & (votes > 0)
        of_nodes = wanted & (voters.senders < round.num_nodes)
        if round.federation.require(Selection).scores_are_first_order:
            known = round.candidates.look_up(round.scores, voters.receivers, voters.senders)
            itself = (voters.receivers == voters.senders) & (round.candidates.count > 0)[voters.receivers]
            gains = torch.where(of_nodes, torch.where(itself, round.own_scores[voters.receivers], known), gains)
        missing = of_nodes & gains.isnan()
        if missing.any():
            links = Links(voters.receivers[missing], voters.senders[missing], round.num_nodes)
            gains[missing] = gains_of(round, links)
        stored = wanted & ~of_nodes
        if stored.any():
            losses = round.vote_losses("val")[stored]
            distances = self._distances_of_substitutes(round, voters)[stored]
            before = losses_before(round, voters.keep(stored))
            gains[stored] = first_order_gain(before, losses, distances, round.bank.rows("models").dtype)
        return gains

    def _distances_of_substitutes(self, round: Round, voters: Links) -> Tensor:
        """Return the distance of each substitute row to the receiver's former model, float64 [E]; 0 for other rows."""
        n, m, bank = round.num_nodes, round.num_clients, round.bank
        distances = torch.zeros(len(voters), dtype=torch.float64)
        for block, substitutes in enumerate(round.substitute_rows):
            first = n + block * m
            at = torch.nonzero((voters.senders >= first) & (voters.senders < first + m)).squeeze(1)
            owners = voters.senders[at] - first
            if substitutes.relative:  # an update is added to the former model: its length is the distance
                lengths = bank.squared_lengths(substitutes.rows, owners, bank.layout.shared_parameters)
                distances[at] = lengths.sqrt()
            else:
                links = Links(voters.receivers[at], owners, n)
                distances[at] = bank.compare(substitutes.rows, links, own="models").distances
        return distances
