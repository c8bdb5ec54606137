"""Momentum that stays with its client from round to round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.objectives.plain_steps import decays_weights, steps_are_plain
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class LocalMomentum(Plain):
    """SGD with heavy-ball momentum that lasts over rounds (the DSGDm of Lin et al. 2021, arXiv 2102.04761).

    `v = momentum * v + gradient` and `w = w - lr * v`, as in `torch.optim.SGD`. Each client keeps its v, which starts
    at 0, while models are exchanged and mixed. With `Plain` an optimizer starts anew in every round, and its momentum
    hardly builds up in a few local steps. v is not sent. Fine-tuning before an evaluation does not use it.

    Args:
        momentum: weight of v in the next step, at least 0 and below 1; `model.optimizer` must be SGD without momentum.
        personal_epochs: as in `Plain`; personal parameters have momentum too.
    """

    recordable = True
    row_sets = {"momentum": "zeros"}

    def __init__(self, momentum: float = 0.9, personal_epochs: int | None = None) -> None:
        if not 0 <= momentum < 1:
            raise UserError(f"objective.momentum={momentum}; it must be at least 0 and below 1")
        super().__init__(personal_epochs)
        self.momentum = momentum

    def start(self, federation: Federation) -> None:
        """Require SGD without momentum, weight decay and clipping, which alone steps along v."""
        local = federation.local
        if not steps_are_plain(local):
            raise UserError(
                "objective LocalMomentum has the momentum itself; set model.optimizer to SGD without momentum, for "
                "example --model.optimizer SGD --model.optimizer.lr 0.05 --model.optimizer.momentum 0"
            )
        if decays_weights(local):
            raise UserError(
                "objective LocalMomentum: the optimizer's weight decay would bypass the momentum; set "
                "model.optimizer.weight_decay to 0"
            )
        if local.clipped:
            raise UserError(
                "objective LocalMomentum: the momentum would be clipped in place of gradients; drop "
                "trainer.gradient_clip_val"
            )

    def step(self, ctx: JobContext) -> None:
        """Take one batch, one gradient, one update along the momentum."""
        model, kept = ctx.model(), ctx.model("momentum")
        grads = model.grad(ctx.next_batch())
        kept.assign([torch.add(g, v, alpha=self.momentum) for g, v in zip(grads, kept.params, strict=True)])
        model.update(kept.params)
