"""Per-FedAvg: a common model that one step on a client's own data turns into a good one for the client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, JobContext, LocalRule, Phase, TrainableModel
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class PerFedAvg(Objective):
    """Descent on the loss after one step, f(w - alpha grad f(w)) (Fallah et al. 2020, arXiv 2002.07948, algorithm 1).

        a = w - alpha grad f(w; D),    g = grad f(a; D')
        w = w - beta (g - alpha H(w; D'') g)

    D, D' and D'' are three batches, and H is the Hessian of f. The optimizer takes the step, so beta is
    `model.optimizer.lr`. A client is evaluated after one step of length alpha on one batch of its training data, from
    the averaged model and for the evaluation only. The logged training loss is the mean over all batches, the first
    ones at w and the second ones at a.

    Args:
        alpha: length of the step that adapts the model to a client, 0 or more.
        order: `first`: without the Hessian, with two batches per step (FO-MAML); `difference`: the Hessian's product
            with g is (grad f(w + delta g) - grad f(w - delta g)) / (2 delta) (HF-MAML); `hessian`: the exact product,
            in the loop engine only.
        delta: delta of `difference`, above 0.
    """

    method_name = "Per-FedAvg"
    stackable = recordable = True

    def __init__(
        self,
        alpha: float = 0.01,
        order: Literal["first", "difference", "hessian"] = "first",
        delta: float = 1e-3,
    ) -> None:
        if not (alpha >= 0 and math.isfinite(alpha)):
            raise UserError(f"objective.alpha={alpha}; the length of Per-FedAvg's inner step must be 0 or more")
        if order not in ("first", "difference", "hessian"):
            raise UserError(f"objective.order={order}; it is first, difference or hessian")
        if not (delta > 0 and math.isfinite(delta)):
            raise UserError(f"objective.delta={delta}; it must be above 0")
        self.alpha, self.order, self.delta = alpha, order, delta
        self.stackable = self.recordable = order != "hessian"  # stacked layers have a first derivative only

    def step(self, ctx: JobContext) -> None:
        """Update the model on two batches, or three with the Hessian."""
        model, first, second = ctx.model(), ctx.next_batch(), ctx.next_batch()
        grads = model.grad(second, at=_moved(model.params, model.grad(first), -self.alpha))
        if self.order != "first":
            grads = _moved(grads, self._hessian_times(model, ctx.next_batch(), grads), -self.alpha)
        model.update(grads)

    def adaptation(self, layout: Layout) -> tuple[Phase, ...]:
        """Return a phase of one step of length alpha on one batch."""
        return (Phase(_InnerStep(self.alpha), Duration(0, steps=1), layout.all),)

    def _hessian_times(self, model: TrainableModel, batch: Any, vector: Sequence[Tensor]) -> list[Tensor]:
        if self.order == "hessian":
            return model.hessian_product(batch, vector)
        ahead, behind = (model.grad(batch, at=_moved(model.params, vector, d)) for d in (self.delta, -self.delta))
        return [(a - b) / (2 * self.delta) for a, b in zip(ahead, behind, strict=True)]


class _InnerStep(LocalRule):
    """A gradient step of a given length, without the run's optimizer."""

    stackable = True

    def __init__(self, length: float) -> None:
        self._length = length

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns."""
        return (Phase(self, duration, layout.all),)

    def step(self, ctx: JobContext) -> None:
        """Move the model by one step along the gradient of one batch."""
        model = ctx.model()
        model.assign(_moved(model.params, model.grad(ctx.next_batch()), -self._length))


def _moved(points: Sequence[Tensor], along: Sequence[Tensor], by: float) -> list[Tensor]:
    return [p + by * a for p, a in zip(points, along, strict=True)]
