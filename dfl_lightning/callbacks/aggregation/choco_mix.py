"""CHOCO-SGD's mixing: each model moves by the weighted differences of public copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.aggregation.metropolis import Metropolis
from dfl_lightning.callbacks.base import Outgoing, Substitution
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class CHOCOMix(Metropolis):
    """The mixing of public copies in CHOCO-SGD (Koloskova, Stich and Jaggi 2019, arXiv 1902.00340, algorithm 2).

        x_i = x_i + gamma sum_j w_ij (x_hat_j - x_hat_i)

    x_i is the trained model, x_hat_j the public copy that the outgoing `CHOCO` keeps of client j, and w are Metropolis
    weights. As w is symmetric, the mean of all models moves by training only, however much the compression leaves out.
    With gamma = 1 and without compression it is D-SGD.

    Args:
        gamma: consensus step size, above 0 and at most 1; the more the compression leaves out, the smaller it must be.
    """

    mixes_public_copies = True

    supports_clock = False
    against_clock = "all neighbours keep copies of a model that change in the same round"

    def __init__(self, gamma: float = 0.3) -> None:
        if not 0 < gamma <= 1:
            raise UserError(f"aggregation.gamma={gamma}; the consensus step size is above 0 and at most 1")
        super().__init__(laziness=1 - gamma)
        self.gamma = gamma

    def start(self, federation: Federation) -> None:
        """Require the outgoing policy that keeps public copies, and no substitution."""
        super().start(federation)
        outgoing = [policy for policy in federation.policies if isinstance(policy, Outgoing)]
        if not any(policy.sends_public_copies for policy in outgoing):
            raise UserError("aggregation CHOCOMix mixes the public copies of --outgoing CHOCO; add it")
        if federation.policy(Substitution) is not None:
            raise UserError(
                "aggregation CHOCOMix mixes public copies, which have no substitute; use --substitution null"
            )

    def on_mix(self, round: Round) -> None:
        """Add the weighted differences of public copies to the trained models; `weights` are I + gamma (W - I)."""
        voters, weights = round.voters, round.weights
        where = round.receivers & voters.any(weights != 0)
        own = voters.receivers == voters.senders
        counted = where[voters.receivers]
        shares = (weights - own.double())[counted]
        jobs, shape = (where.cumsum(0) - 1)[voters.receivers[counted]], (int(where.sum()), round.num_nodes)
        moved = Weights(jobs, voters.senders[counted], shares, shape)
        itself = Weights.of_rows(torch.nonzero(where).squeeze(1), round.num_nodes)
        round.mix([(itself, "trained"), (moved.keep(moved.shares != 0), "sent")], into="models", where=where)
