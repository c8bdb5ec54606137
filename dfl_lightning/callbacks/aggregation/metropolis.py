"""Metropolis weights: averaging that keeps the mean of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.families import Aggregation, Selection
from dfl_lightning.errors import UserError
from dfl_lightning.functional import metropolis_weights
from dfl_lightning.round import Round

if TYPE_CHECKING:
    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer


class Metropolis(Aggregation):
    """A neighbour counts 1 / (1 + max(d_i, d_j)) with d the numbers of neighbours heard, oneself the rest.

    With every neighbour of an undirected graph (D-SGD) the weights are doubly stochastic in each round, whoever is
    down: the mean of all models moves by training only, and nobody counts more for being heard by many, as it does
    under `Uniform`. Where hearing is not mutual, rows still sum to 1 and columns may not; the banner says so.
    """

    def check(self, trainer: DFLTrainer, module: DFLModule) -> None:
        """Receivers must be clients; who does not hear all its neighbours is worth a remark."""
        if module.topology.num_servers:
            raise UserError(
                "aggregation Metropolis is for clients that average with each other; "
                "a server averages by --aggregation Uniform or SampleWeighted"
            )
        selection = trainer.policy(Selection)
        if module.topology.directed or getattr(selection, "k", None) != "all" or module.topology.budgets is not None:
            remark = (
                "Metropolis keeps the mean of all models only where hearing is mutual: "
                "an undirected topology and --selection.k all"
            )
            trainer.remarks += [] if remark in trainer.remarks else [remark]

    def second_eigenvalue(self, trainer: DFLTrainer, module: DFLModule) -> float | None:
        """|lambda_2| of the weights while everybody is up: what a round of mixing leaves of differences, at most.

        None where the weights are not the same in all rounds, or not symmetric, or for more than 2,000 clients.
        """
        topology = module.topology
        everybody = getattr(trainer.policy(Selection), "k", None) == "all" and topology.budgets is None
        if not everybody or topology.changes or topology.directed or not 2 <= topology.num_nodes <= 2000:
            return None
        votes = topology.linked(0) | torch.eye(topology.num_nodes, dtype=torch.bool)
        return float(torch.linalg.eigvalsh(metropolis_weights(votes)).abs().sort().values[-2])

    def on_weigh(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """Weights from this round's votes; an update counts with the number of neighbours of whose it is."""
        assert round.votes is not None
        clients = torch.arange(round.num_clients)
        owners = torch.cat([torch.arange(round.num_nodes), *[clients] * len(round.speakers)])
        round.weights = metropolis_weights(round.votes, owners)
