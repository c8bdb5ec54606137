"""Push-sum: averaging over directed links that does not change the mean of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Aggregation, Outgoing, refuse_stored_rows
from dfl_lightning.functional import push_sum_weights
from dfl_lightning.round.record import Round
from dfl_lightning.topology import never_reached_back
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class PushSum(Aggregation):
    """The push-sum average of stochastic gradient push (Assran et al. 2019, arXiv 1811.10792, algorithm 1).

        P_ij = 1 / (1 + d_j)
        x_i = sum_j P_ij x_j,    y_i = sum_j P_ij y_j,    z_i = x_i / y_i

    Client j sends the share P_ij of its numerator x_j and of its number y_j to each of the d_j clients that receive
    from it, and keeps the same share. It trains at its model z_j = x_j / y_j, and its local update is added to x_j. The
    sums of x and of y over all clients change by training only, whatever the direction of the links, so that without
    training all z approach the mean of the first models. The number, 4 bytes, is sent in addition to each model. Also
    on undirected graphs all clients count equally, however many receive from them. Each client with outgoing links must
    be reachable over links that lead back: otherwise its number falls to 0, and its steps, which are divided by it,
    grow.
    """

    method_name = "push-sum"
    supports_servers = False
    column_stochastic = True
    state = ("held",)
    against_clock = "a sender must know how many clients fetch its model before it shares it out"

    def __init__(self) -> None:
        self.held: Tensor  # y, float64 [n]

    def start(self, federation: Federation) -> None:
        """Require unchanged messages, no stored substitutes, and links that lead back to each client."""
        refuse_stored_rows(federation, self, "shares out")
        if federation.policy(Outgoing) is not None:
            raise UserError(
                "aggregation PushSum sends shares of numerators, which no Outgoing policy changes; "
                "use --outgoing null, or --aggregation Metropolis"
            )
        only_give = torch.nonzero(never_reached_back(federation.topology)).squeeze(1)
        if len(only_give):
            raise UserError(
                f"aggregation PushSum: links of topology {federation.topology.name} lead away from client "
                f"{int(only_give[0])} to clients from which none leads back, so that its push-sum number would fall to "
                "0; use a strongly connected graph, or --aggregation Uniform"
            )
        self.held = torch.ones(federation.num_nodes, dtype=torch.float64)

    def on_weigh(self, round: Round) -> None:
        """Write the share of each sender's model that a receiver gets."""
        round.weights = push_sum_weights(round.votes, round.voters)

    def on_mix(self, round: Round) -> None:
        """Divide new numerators by new numbers: z_i = sum_j P_ij (trained_j + (y_j - 1) z_j) / y_i.

        trained_j + (y_j - 1) z_j is the numerator y_j z_j plus the update of the local training.
        """
        voters, weights = round.voters, round.weights
        n, where = round.num_nodes, round.receivers & voters.any(weights != 0)
        counted = (weights != 0) & where[voters.receivers]
        receivers, senders, given = voters.receivers[counted], voters.senders[counted], weights[counted]
        held = self.held.masked_fill(where, 0).index_add(0, receivers, given * self.held[senders])
        empty = torch.nonzero(held < torch.finfo(round.bank.rows("models").dtype).eps).squeeze(1)
        if len(empty):
            raise UserError(
                f"{nth_round(round.index)}: aggregation PushSum: the push-sum number of client {int(empty[0])} has "
                f"fallen to {float(held[empty[0]]):.2g}, since links have not led back to it; use a strongly connected "
                "graph, and a selection that draws again in each round"
            )
        shares = given / held[receivers]
        jobs, shape = (where.cumsum(0) - 1)[receivers], (int(where.sum()), n)
        before = Weights(jobs, senders, shares * (self.held[senders] - 1), shape)
        round.charge_message("push-sum number", voters.keep(counted), 4)
        terms = [(Weights(jobs, senders, shares, shape), "trained"), (before.keep(before.shares != 0), "models")]
        round.mix(terms, into="models", where=where)
        self.held = held
