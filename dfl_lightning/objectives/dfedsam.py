"""DFedSAM: local steps along the gradient at the worst point nearby, for models that mix well."""

from __future__ import annotations

import math

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class DFedSAM(Objective):
    """Sharpness-aware local steps between mixings (Shi et al. 2023, arXiv 2302.04083, algorithm 1).

    On every batch with gradient g of the mean loss f at w,

        w = w - eta grad f(w + rho g / ||g||)

    both gradients on the same batch; then models are mixed. With several mixing steps in a round,
    `aggregation.steps` of `Metropolis`, it is DFedSAM-MGS. Under a server it is FedSAM (Qu et al. 2022, arXiv
    2206.02618). A step costs two gradients; nothing but models is sent. The norm is over all parameters, which are
    trained at once, whether they are shared or not. The logged training loss is the mean of f at both points.

    Args:
        rho: length of the step to the worst point nearby, 0 or more; 0 is `Plain`.
    """

    method_name = "DFedSAM"
    stackable = recordable = True

    def __init__(self, rho: float = 0.01) -> None:
        if not (rho >= 0 and math.isfinite(rho)):
            raise UserError(f"objective.rho={rho}; the length of DFedSAM's perturbation must be 0 or more")
        self.rho = rho

    def step(self, ctx: JobContext) -> None:
        """Take one batch, two gradients, one update."""
        model, batch = ctx.model(), ctx.next_batch()
        model.update(model.grad(batch, at=model.climbed(model.grad(batch), self.rho)))
