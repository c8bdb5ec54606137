"""Metropolis weights: averages that do not change the mean of all models."""

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
    """The average with Metropolis weights (Xiao, Boyd and Lall, IPSN 2005), as in D-SGD (arXiv 1705.09056).

        W_ij = 1 / (1 + max(d_i, d_j)) for each selected j,    W_ii = 1 - sum_j W_ij

    d_i is the number of neighbours that client i receives from in the round. With all neighbours of an undirected graph
    W is doubly stochastic in each round, whichever clients have dropped out: the mean of all models moves by training
    only, and a client with many neighbours does not count more than others, as it does with `Uniform`. If links are not
    mutual, or substitutes replace clients that have dropped out, rows still sum to 1, but columns may not; the banner
    says so.

    Args:
        steps: number of times that models are mixed in a round with the same W, as with the power W^steps. Each step
            sends models again (Berahas et al. 2019, arXiv 1709.02999).
        laziness: share of its own model that a client keeps before it mixes, from 0 to below 1: W becomes
            laziness I + (1 - laziness) W, whose eigenvalues are above 2 laziness - 1.
    """

    method_name = "D-SGD"
    supports_servers = False
    supports_clock = True

    def __init__(self, steps: int = 1, laziness: float = 0.0) -> None:
        if steps < 1:
            raise UserError(f"aggregation.steps={steps}; models are mixed 1 time or more in a round")
        if not 0 <= laziness < 1:
            raise UserError(
                f"aggregation.laziness={laziness}; the share of its own model that a client keeps is from 0 to below 1"
            )
        self.steps, self.laziness = steps, laziness

    def start(self, federation: Federation) -> None:
        """Remark on weights that change the mean; refuse several steps if models differ from those that are sent."""
        others = [policy for policy in federation.policies if isinstance(policy, (Substitution, Outgoing))]
        if self.steps > 1 and others:
            raise UserError(
                f"aggregation.steps={self.steps} sends models that have been mixed, which {type(others[0]).__name__} "
                "neither changes nor replaces; use --aggregation.steps 1"
            )
        if self.steps > 1 and federation.is_asynchronous:
            raise UserError(
                f"aggregation.steps={self.steps} mixes again what others have mixed in the same round, and clients "
                "that do not wait for each other have no common round; use --aggregation.steps 1"
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
        """Tell whether W is symmetric in every round: all links are mutual and selected, and no client is replaced."""
        topology = federation.topology
        selects_all = federation.require(Selection).k == "all" and topology.budgets is None
        return selects_all and not topology.directed and federation.policy(Substitution) is None

    def describe(self, federation: Federation) -> str | None:
        """Return a line of the banner with the second largest eigenvalue modulus of W; None if it is unknown."""
        rate = self.second_eigenvalue(federation)
        if rate is None:
            return None
        return f"Metropolis weights: second largest eigenvalue modulus {rate:.4g} with all clients active"

    def second_eigenvalue(self, federation: Federation) -> float | None:
        """Return |lambda_2| of W with all clients active: a step shrinks differences of models at least by this factor.

        Returns:
            The modulus; None if `eigenvalues` returns None.
        """
        eigenvalues = self.eigenvalues(federation)
        return None if eigenvalues is None else float(eigenvalues.abs().sort().values[-2])

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Compute the eigenvalues of one step's mixing matrix W with all clients active, float64 [n], ascending.

        None if the weights change from round to round or are not symmetric, or if there are more than 2,000 clients.
        """
        topology = federation.topology
        if not self.is_symmetric(federation) or topology.changes or not 2 <= topology.num_nodes <= 2000:
            return None
        voters = topology.linked(0).union(Links.loops(torch.ones(topology.num_nodes, dtype=torch.bool)))
        weights = voters.dense(metropolis_weights(torch.ones(len(voters)), voters), 0)
        return self.laziness + (1 - self.laziness) * torch.linalg.eigvalsh(weights)

    def on_weigh(self, round: Round) -> None:
        """Write weights from this round's votes; a substitute row has the number of neighbours of its owner."""
        idle = None
        if not bool(round.due.all()):  # the other clients mix later, with as many neighbours as they may choose
            limits = round.federation.require(Selection).limits(round)
            idle = torch.minimum(round.reachable.count, limits)
        weights = metropolis_weights(round.votes, round.voters, round.row_owner, idle)
        if self.laziness:
            own = round.voters.receivers == round.voters.senders
            own &= round.voters.any(weights != 0)[round.voters.receivers]  # a receiver without weights keeps its model
            weights = (1 - self.laziness) * weights + self.laziness * own.double()
        round.weights = weights

    def on_mix(self, round: Round) -> None:
        """Mix the models `steps` times."""
        super().on_mix(round)
        where = round.receivers & round.voters.any(round.weights != 0)
        for _ in range(self.steps - 1):
            round.mix_again(round.weights, where)
