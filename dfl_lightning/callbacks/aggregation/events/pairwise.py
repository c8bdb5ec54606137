"""Asynchronous averages of pairs: AD-PSGD."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.aggregation.events.events import (
    GIVEN,
    STARTS,
    CurrentModels,
    at_nodes,
    clients_in_order,
)
from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import pair_coefficients, uniform_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Pairwise(CurrentModels):
    """The average of two clients' current models (AD-PSGD, Lian et al. 2018, arXiv 1710.06952, algorithm 1).

        x_i, x_j <- (x_i + x_j) / 2;    x_i <- x_i + u_i

    When client i has finished a training, it draws a neighbour j, and both continue with the mean of their models. Then
    i adds the update u_i of its training, and starts again. Neighbour j is still training from its former model, and
    will add its update to the model that it then has. The pair's average does not change the mean of all models.

    Both models of a pair are sent, and charged. Client i waits for the model of j, and j trains while it receives that
    of i. Two events at one instant are taken in the order of the clients' ids.

    It needs memory for one further model of each client.
    """

    method_name = "AD-PSGD"
    supports_servers = False

    def start(self, federation: Federation) -> None:
        """Require a clock, one drawn neighbour, and links that go both ways."""
        super().start(federation)
        selection = federation.require(Selection)
        if selection.lists_candidates or bool((selection.limits_in(federation) > 1).any()):
            raise UserError(
                "aggregation Pairwise averages the models of two clients, the second one drawn; use --selection Gossip "
                "--selection.k 1, without a budget above 1 in the topology"
            )
        if federation.topology.directed:
            raise UserError(
                "aggregation Pairwise changes the models of both clients of a link, so that links must go both ways; "
                "use an undirected topology"
            )

    def awaited(self, round: Round) -> Links:
        """Return the links over which the clients of the wave wait for the models of their neighbours."""
        return round.selected

    def on_weigh(self, round: Round) -> None:
        """Write one half for each model of a pair."""
        round.weights = uniform_weights(round.votes, round.voters)

    def on_mix(self, round: Round) -> None:
        """Walk through the events, and write all models that they change, and where clients start again."""
        bank, n = round.bank, round.num_nodes
        clients = clients_in_order(round)
        trained = round.participants[clients]
        chosen = torch.full((n,), -1)
        chosen[round.selected.receivers] = round.selected.senders
        partners = chosen[clients]
        bank.scratch(GIVEN)
        givers = clients[trained].sort().values  # the others' updates are 0
        bank.combine(torch.sub, ["trained", STARTS], GIVEN, givers, only_reads=True)
        models, after = pair_coefficients(clients, partners, n)
        touched = torch.cat([clients, partners[partners >= 0]]).unique()
        for coefficients, into, where in ((after, STARTS, clients), (models[touched], "models", touched)):
            terms = [
                (Weights.of_dense(coefficients[:, :n]), "models"),
                (at_nodes(coefficients[:, n:], clients, n), GIVEN),
            ]
            bank.mix(terms, into, where)
        _charge(round, clients[partners >= 0], partners[partners >= 0])


def _charge(round: Round, clients: Tensor, partners: Tensor) -> None:
    """Charge the two models of each pair; a pair may meet twice in a wave, if each has drawn the other."""
    n = round.num_nodes
    codes = torch.cat([clients * n + partners, partners * n + clients])
    links, times = codes.unique(return_counts=True)
    round.ledger.fetch(links // n, links % n, mixed=True)
    again = links[times > 1]
    if len(again):
        round.ledger.forget(again // n)
        round.ledger.fetch(again // n, again % n, mixed=True)
