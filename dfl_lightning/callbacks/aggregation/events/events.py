"""The base of aggregations of current models: where training starts, and what they do not support."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.callbacks.base import Aggregation, Outgoing
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

STARTS, GIVEN = "training_starts", "given"
"""Row sets: the model that each client's present training starts from, and what clients contribute in a wave."""


class CurrentModels(Aggregation):
    """An aggregation in which one event at a time changes models, in the order of simulated time, then of ids."""

    supports_clock = True
    mixes_current_models = True
    row_sets = {STARTS: "models"}

    def start(self, federation: Federation) -> None:
        """Require an asynchronous clock, models without running statistics, and messages as they are.

        Raises:
            UserError: one of these is missing.
        """
        name = type(self).__name__
        if not federation.is_asynchronous:
            raise UserError(
                f"aggregation {name} is for clients that do not wait for each other; set clock Asynchronous, or use "
                "--aggregation Uniform"
            )
        if federation.policy(Outgoing) is not None:
            raise UserError(
                f"aggregation {name} mixes models as they are at that instant, which no Outgoing policy changes; use "
                "--outgoing null"
            )
        if len(federation.layout.shared_buffers):
            raise UserError(
                f"aggregation {name} adds updates to models, which can take running statistics out of range; use a "
                "network without batch normalisation"
            )

    def on_propose(self, round: Round) -> None:
        """Let clients train from the models that they had when they finished last."""
        owners = round.jobs.owners
        round.jobs = References((Term(STARTS, owners),), owners, "models")

    def on_mixed(self, round: Round) -> None:
        """Let clients start again from their models if none of them has trained, so that nothing was mixed."""
        clients = clients_in_order(round)
        if len(clients) and not bool(round.active[: round.num_clients].any()):
            self.start_again(round, clients)

    def start_again(self, round: Round, clients: Tensor) -> None:
        """Write where the clients, long [e], start after a wave in which no model has changed."""
        round.bank.combine(lambda rows: rows, ["models"], STARTS, clients, only_reads=True)


def clients_in_order(round: Round) -> Tensor:
    """Return the clients that finish in this wave in the order of their events: by time, then by id; long [e]."""
    due = torch.nonzero(round.due[: round.num_clients]).squeeze(1)
    return due[torch.argsort(round.instants[due], stable=True)]


def at_nodes(coefficients: Tensor, nodes: Tensor, number: int) -> Weights:
    """Turn coefficients [w, len(nodes)] of different nodes' rows into weights of `number` nodes' rows in w sums."""
    order = nodes.argsort()
    weights = Weights.of_dense(coefficients[:, order])
    return replace(weights, rows=nodes[order][weights.rows], shape=(len(coefficients), number))
