"""MOON: features that stay near those of the model received and away from those of the model trained before."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class MOON(Objective):
    """Local training with a contrast of features (MOON, Li et al. 2021, arXiv 2103.16257, eq. 3).

        w = w - eta grad (f(w) + mu contrast(w)), with contrast(w) the mean over the batch of
        -log(exp(cos(z, z_near) / tau) / (exp(cos(z, z_near) / tau) + exp(cos(z, z_far) / tau)))

    z, z_near and z_far are the features of a sample by the model in training, by the model at the start of the round,
    and by the model that the client trained when it last took part. Features are the inputs of the network's last
    linear layer. The model at the start of the round is the server's, or without a server the client's own after
    mixing. Before its first training a client has no earlier model, and the first one of the run replaces it. In round
    0 z_near and z_far are then equal, and the contrast has no gradient; a client that first takes part later starts
    from another model. A client that has dropped out or diverges keeps its earlier model, which is never sent. Shared
    and personal parameters are trained together, and the logged training loss includes the contrast.

    Args:
        mu: weight of the contrast, 0 or more; 0 is `Plain`.
        tau: temperature of the cosines, above 0.
    """

    method_name = "MOON"
    stackable = recordable = True
    row_sets = {"previous": "models"}
    features = ("head",)

    def __init__(self, mu: float = 1.0, tau: float = 0.5) -> None:
        if not (mu >= 0 and math.isfinite(mu)):
            raise UserError(f"objective.mu={mu}; the weight of MOON's contrast must be 0 or more")
        if not (tau > 0 and math.isfinite(tau)):
            raise UserError(f"objective.tau={tau}; the temperature of MOON's contrast must be above 0")
        self.mu, self.tau = mu, tau

    def step(self, ctx: JobContext) -> None:
        """Compute the features of one batch by the two other models, and update the model."""
        model, previous, batch = ctx.model(), ctx.model("previous"), ctx.next_batch()
        batch = batch.attach(near=model.features(batch, at=model.start), far=previous.features(batch))

        def loss(scores: Tensor, batch: Any, features: dict[str, Tensor]) -> Tensor:
            near = F.cosine_similarity(features["head"], batch.near, dim=-1) / self.tau
            far = F.cosine_similarity(features["head"], batch.far, dim=-1) / self.tau
            return ctx.loss(scores, batch) + self.mu * (torch.logaddexp(near, far) - near).mean()

        model.update(model.grad(batch, loss))

    def finish(self, ctx: JobContext) -> None:
        """Keep the trained model as the earlier model of the next round."""
        ctx.model("previous").assign(ctx.model().params)
