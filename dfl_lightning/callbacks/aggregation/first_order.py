"""FedFomo's average: models count by what each of them improves, per distance."""

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
    """Models count by their gain on the receiver's validation data per distance (FedFomo, arXiv 2012.08565, eq. 3, 4).

    The weight of w_j is `max(0, (L(w0) - L(w_j)) / ||w_j - w0||)` over the sum of these numbers, with w0 the receiver's
    model from before the round and its own trained model among the w_j. Where no model has a positive one, the receiver
    goes on with w0; a client that receives nothing trains alone. The selection FedFomo has these numbers already; with
    any other they are computed here, of the models that are mixed.
    """

    supports_servers = False

    def start(self, federation: Federation) -> None:
        """Require validation data, on which gains are measured."""
        federation.require_validation("aggregation FirstOrder")

    def on_weigh(self, round: Round) -> None:
        """Divide the positive gains by their sum; zeros where there is none."""
        voters, votes = round.voters, round.votes
        others = (votes > 0) & (voters.receivers != voters.senders)
        alone = ~voters.any(others)[voters.receivers]
        positive = votes * self._gains(round, voters, votes, ~alone).nan_to_num(nan=0.0).clamp(min=0)
        positive = torch.where(alone, votes, positive)
        total = voters.sum(positive)
        round.weights = positive / torch.where(total > 0, total, 1.0)[voters.receivers]

    def on_mix(self, round: Round) -> None:
        """Average, and put back the models from before the round where nothing has improved them."""
        where = round.receivers
        improved = round.voters.any(round.weights != 0)  # a receiver without any vote keeps what it trained
        where = where & round.voters.any(round.votes > 0)
        kept = torch.where(improved, -1, torch.arange(round.num_nodes))[where]
        terms = mixed_terms(round, round.weights, where)
        round.mix([*terms, (Weights.of_rows(kept, round.num_nodes), "models")], into="models", where=where)

    def _gains(self, round: Round, voters: Links, votes: Tensor, wanted: Tensor) -> Tensor:
        """Of each row that has a vote and is wanted, float64 [len(voters)]; NaN where it is not known."""
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
        """Of rows that stand in for clients to what the receiver's model was, float64 [len(voters)]; 0 of others."""
        n, m, bank = round.num_nodes, round.num_clients, round.bank
        found = torch.zeros(len(voters), dtype=torch.float64)
        for block, substitutes in enumerate(round.substitute_rows):
            first = n + block * m
            at = torch.nonzero((voters.senders >= first) & (voters.senders < first + m)).squeeze(1)
            whose = voters.senders[at] - first
            if substitutes.relative:  # added to that model
                lengths = bank.squared_lengths(substitutes.rows, whose, bank.layout.shared_parameters)
                found[at] = lengths.sqrt()
            else:
                links = Links(voters.receivers[at], whose, n)
                found[at] = bank.compare(substitutes.rows, links, own="models").distances
        return found
