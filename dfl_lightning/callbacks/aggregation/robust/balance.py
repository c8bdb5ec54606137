"""BALANCE: averages of models that are near the client's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.aggregation.robust.distance_weighted import DistanceWeighted, log_share
from dfl_lightning.functional import accepted_models, balanced_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class BALANCE(DistanceWeighted):
    """The average of models that are near the client's own (BALANCE, Fang et al., CCS 2024, arXiv 2406.10416).

        A_i = {j : |w_i - w_j| <= gamma exp(-kappa t / T) |w_i|}          (eq. 3)
        w_i = alpha w_i + (1 - alpha) mean of the w_j with j in A_i       (eq. 4)

    t is the round, counted from 0, and T the number of rounds of the run. A client that accepts no model keeps its own.
    Distances and norms are over the shared parameters of the client's trained model and of the received models; buffers
    are averaged with the same weights. Logs `accepted`: the share of the received models that were accepted.

    Args:
        gamma: distance that is accepted in the first round, above 0, in units of the norm of the client's own model.
        kappa: rate at which the accepted distance shrinks, 0 or more.
        alpha: weight of the client's own model, 0 to 1.
    """

    method_name = "BALANCE"
    against_adversaries = True
    supports_servers = False
    logs = ("accepted",)

    def __init__(self, gamma: float = 0.3, kappa: float = 1.0, alpha: float = 0.5) -> None:
        if not (gamma > 0 and math.isfinite(gamma)):
            raise UserError(f"aggregation.gamma={gamma}; it is a distance above 0, in units of the own model's norm")
        if not (kappa >= 0 and math.isfinite(kappa)):
            raise UserError(f"aggregation.kappa={kappa}; it must be 0 or more")
        if not 0 <= alpha <= 1:
            raise UserError(f"aggregation.alpha={alpha}; the weight of the own model is from 0 to 1")
        self.gamma, self.kappa, self.alpha = gamma, kappa, alpha
        self.rounds = 1  # of the run

    def start(self, federation: Federation) -> None:
        """Require a known number of rounds, and no substitution that mixes stored rows."""
        super().start(federation)
        if federation.num_rounds is None:
            raise UserError("aggregation BALANCE accepts less and less until the run's end; set trainer.max_rounds")
        self.rounds = max(1, federation.num_rounds)

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Compare the models, accept those within the radius, and return the weights of the average."""
        distances = round.compare("trained", voters).distances
        nodes = torch.arange(round.num_nodes)
        lengths = round.bank.squared_lengths("trained", nodes, round.bank.layout.shared_parameters).sqrt()
        accepted = accepted_models(distances, lengths, voters, self.gamma, self.kappa, round.index / self.rounds)
        log_share(round, "accepted", voters, accepted)
        return balanced_weights(votes, accepted, voters, self.alpha)
