"""Metropolis weights: averaging that keeps the mean of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.base import Aggregation, Outgoing, Selection, Substitution
from dfl_lightning.functional import metropolis_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Metropolis(Aggregation):
    """A neighbour counts 1 / (1 + max(d_i, d_j)) with d the numbers of neighbours received from, oneself the rest.

    With every neighbour of an undirected graph (D-SGD) the weights are doubly stochastic in each round, whoever is
    down: the mean of all models moves by training only, and no client counts more for sending to many, as it does
    under `Uniform`. Where links are not mutual, rows still sum to 1 and columns may not; the banner says so.

    Args:
        steps: how often models are mixed in a round, by the same weights W: those of W to the power of `steps`. Each
            step sends models again (Berahas et al. 2019, arXiv 1709.02999).
    """

    supports_servers = False

    def __init__(self, steps: int = 1) -> None:
        if steps < 1:
            raise UserError(f"aggregation.steps={steps}; models are mixed 1 time or more in a round")
        self.steps = steps

    def start(self, federation: Federation) -> None:
        """Who does not receive from all its neighbours is worth a remark; later steps need the clients themselves."""
        others = [policy for policy in federation.policies if isinstance(policy, (Substitution, Outgoing))]
        if self.steps > 1 and others:
            raise UserError(
                f"aggregation.steps={self.steps} sends models that have been mixed, which {type(others[0]).__name__} "
                "neither changes nor replaces; use --aggregation.steps 1"
            )
        selection = federation.policy(Selection)
        topology = federation.topology
        if topology.directed or getattr(selection, "k", None) != "all" or topology.budgets is not None:
            remark = (
                "Metropolis keeps the mean of all models only where links are mutual: "
                "an undirected topology and --selection.k all"
            )
            federation.remark(remark)

    def second_eigenvalue(self, federation: Federation) -> float | None:
        """|lambda_2| of the mixing matrix while all clients are active: what a round leaves of differences, at most.

        None where the weights are not the same in all rounds, or not symmetric, or for more than 2,000 clients.
        """
        topology = federation.topology
        selects_all = getattr(federation.policy(Selection), "k", None) == "all" and topology.budgets is None
        if not selects_all or topology.changes or topology.directed or not 2 <= topology.num_nodes <= 2000:
            return None
        voters = topology.linked(0).union(Links.loops(torch.ones(topology.num_nodes, dtype=torch.bool)))
        weights = voters.dense(metropolis_weights(torch.ones(len(voters)), voters), 0)
        return float(torch.linalg.eigvalsh(weights).abs().sort().values[-2])

    def on_weigh(self, round: Round) -> None:
        """Weights from this round's votes; an update counts with the number of neighbours of whose it is."""
        round.weights = metropolis_weights(round.votes, round.voters, round.row_owner)

    def on_mix(self, round: Round) -> None:
        """As often as there are steps."""
        super().on_mix(round)
        where = round.receivers & round.voters.any(round.weights != 0)
        for _ in range(self.steps - 1):
            round.mix_again(round.weights, where)
