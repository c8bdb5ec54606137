"""DFedSAM: local steps along the gradient at the point nearby with the highest loss."""

from __future__ import annotations

import math

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class DFedSAM(Objective):
    """Sharpness-aware local steps between mixings (DFedSAM, Shi et al. 2023, arXiv 2302.04083, algorithm 1).

        w = w - eta grad f(w + rho g / ||g||),    g = grad f(w)

    Both gradients are on the same batch. With several mixing steps in a round, `aggregation.steps` of `Metropolis`, it
    is DFedSAM-MGS. With a server it is FedSAM (Qu et al. 2022, arXiv 2206.02618). A step takes two gradients; clients
    send models only. The norm is over all parameters, and shared and personal ones are trained together. The logged
    training loss is the mean of f at both points.

    Args:
        rho: length of the step to the point with the highest loss nearby, 0 or more; 0 is `Plain`.
    """

    method_name = "DFedSAM"
    stackable = recordable = True
    supports_clock = True

    def __init__(self, rho: float = 0.01) -> None:
        if not (rho >= 0 and math.isfinite(rho)):
            raise UserError(f"objective.rho={rho}; the length of DFedSAM's perturbation must be 0 or more")
        self.rho = rho

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by the gradient at the climbed point."""
        model, batch = ctx.model(), ctx.next_batch()
        model.update(model.grad(batch, at=model.climbed(model.grad(batch), self.rho)))
