"""Metropolis weights: averaging that keeps the mean of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
    under `Uniform`. Where links are not mutual, or others stand in for clients that have dropped out, rows still sum to
    1 and columns may not; the banner says so.

    Args:
        steps: how often models are mixed in a round, by the same weights W: those of W to the power of `steps`. Each
            step sends models again (Berahas et al. 2019, arXiv 1709.02999).
        laziness: share of its own model that a client keeps before it mixes, from 0 to below 1: W becomes
            laziness I + (1 - laziness) W, whose eigenvalues are above 2 laziness - 1.
    """

    method_name = "D-SGD"
    supports_servers = False

    def __init__(self, steps: int = 1, laziness: float = 0.0) -> None:
        if steps < 1:
            raise UserError(f"aggregation.steps={steps}; models are mixed 1 time or more in a round")
        if not 0 <= laziness < 1:
            raise UserError(
                f"aggregation.laziness={laziness}; the share of its own model that a client keeps is from 0 to below 1"
            )
        self.steps, self.laziness = steps, laziness

    def start(self, federation: Federation) -> None:
        """Remark on clients that do not receive from all their neighbours; later steps need the clients themselves."""
        others = [policy for policy in federation.policies if isinstance(policy, (Substitution, Outgoing))]
        if self.steps > 1 and others:
            raise UserError(
                f"aggregation.steps={self.steps} sends models that have been mixed, which {type(others[0]).__name__} "
                "neither changes nor replaces; use --aggregation.steps 1"
            )
        substitution = federation.policy(Substitution)
        if substitution is not None:
            federation.remark(
                "Metropolis keeps the mean of all models only where nothing stands in for clients that have dropped "
                f"out (here {type(substitution).__name__}): --substitution null"
            )
        elif not self.is_symmetric(federation):
            remark = (
                "Metropolis keeps the mean of all models only where links are mutual: "
                "an undirected topology and --selection.k all"
            )
            federation.remark(remark)

    def is_symmetric(self, federation: Federation) -> bool:
        """Tell whether links are mutual and no client is replaced: then W is symmetric in every round.

        Args:
            federation: of the run.
        """
        topology = federation.topology
        selects_all = federation.require(Selection).k == "all" and topology.budgets is None
        return selects_all and not topology.directed and federation.policy(Substitution) is None

    def describe(self, federation: Federation) -> str | None:
        """Return the second largest eigenvalue modulus, where it is known."""
        rate = self.second_eigenvalue(federation)
        if rate is None:
            return None
        return f"Metropolis weights: second largest eigenvalue modulus {rate:.4g} with all clients active"

    def second_eigenvalue(self, federation: Federation) -> float | None:
        """Return |lambda_2| of the mixing matrix with all clients active: what a step leaves of differences, at most.

        Args:
            federation: of the run.

        Returns:
            None where `eigenvalues` has none.
        """
        found = self.eigenvalues(federation)
        return None if found is None else float(found.abs().sort().values[-2])

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Compute the eigenvalues of one step's mixing matrix W with all clients active, float64 [n], ascending.

        None where the weights are not the same in all rounds, or not symmetric, or for more than 2,000 clients.

        Args:
            federation: of the run.
        """
        topology = federation.topology
        if not self.is_symmetric(federation) or topology.changes or not 2 <= topology.num_nodes <= 2000:
            return None
        voters = topology.linked(0).union(Links.loops(torch.ones(topology.num_nodes, dtype=torch.bool)))
        weights = voters.dense(metropolis_weights(torch.ones(len(voters)), voters), 0)
        return self.laziness + (1 - self.laziness) * torch.linalg.eigvalsh(weights)

    def on_weigh(self, round: Round) -> None:
        """Write weights from this round's votes; an update counts with the number of neighbours of whose it is."""
        weights = metropolis_weights(round.votes, round.voters, round.row_owner)
        if self.laziness:
            own = round.voters.receivers == round.voters.senders
            own &= round.voters.any(weights != 0)[round.voters.receivers]  # not in a row of zeros
            weights = (1 - self.laziness) * weights + self.laziness * own.double()
        round.weights = weights

    def on_mix(self, round: Round) -> None:
        """Mix as often as there are steps."""
        super().on_mix(round)
        where = round.receivers & round.voters.any(round.weights != 0)
        for _ in range(self.steps - 1):
            round.mix_again(round.weights, where)
