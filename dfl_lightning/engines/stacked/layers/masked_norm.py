"""Batch norms that ignore padding, with statistics, gradients and running averages of each client."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def masked_batch_norm(
    x: Tensor,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    shares: Tensor,
    rate: float | Tensor,
    eps: float,
) -> Tensor:
    """Compute `F.batch_norm` in training, with statistics of each client's real samples only.

    Padding is normalised as well, with correct gradients, but does not count in mean and variance.

    Args:
        x: [B, k, C, ...].
        running: running means and variances, [k, C] each, updated in place; None: there are none.
        weight: [k, C] or None.
        bias: [k, C] or None.
        shares: weights of samples in their client's batch, [k, B], float32 or float64: 1 / b for each of b real
            samples, 0 for padding; the first sample is always real.
        rate: momentum of the running statistics; one number, or one for each client, [k, 1].
        eps: added to variances.
    """
    positions = x[0, 0, 0].numel()  # Positions of a channel.
    share = (shares.T / positions).view(*x.shape[:2], *[1] * (x.dim() - 2))
    out, mean, var = _MaskedNorm.apply(x, weight, bias, share, eps)
    if running is not None:
        unbiased = var / (1 - share[0].view(-1, 1))
        for average, batch in zip(running, (mean, unbiased), strict=True):
            average.lerp_(batch.to(average.dtype), rate)
    return out


class _MaskedNorm(torch.autograd.Function):
    """Batch norm of each client's channels, with half of the kernel launches that autograd would need."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, share: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute outputs, means and variances; see `masked_batch_norm`.

        `share` [B, k, 1, ...] has the weight of each number in the mean of its channel.
        """
        over = [0, *range(3, x.dim())]
        mean = (x * share).sum(over, keepdim=True)
        centred = x - mean
        var = (centred * share).mul_(centred).sum(over, keepdim=True)
        rstd = (var + eps).rsqrt_()
        scale = rstd if weight is None else rstd * _along(weight, x)
        out = centred * scale if bias is None else torch.addcmul(_along(bias, x), centred, scale)
        ctx.save_for_backward(centred, share, rstd, scale)
        ctx.kinds = x.dtype, *(None if t is None else t.dtype for t in (weight, bias))
        mean, var = (t.view(x.shape[1:3]) for t in (mean, var))
        ctx.mark_non_differentiable(mean, var)
        return out.to(x.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Compute gradients of x, weight and bias."""
        centred, share, rstd, scale = ctx.saved_tensors
        kind, weight_kind, bias_kind = ctx.kinds
        over = [0, *range(3, grad.dim())]
        total = grad.sum(over, keepdim=True, dtype=share.dtype)
        along = (grad * centred).sum(over, keepdim=True).mul_(rstd)  # The gradient times the normalised numbers.
        of_x = None
        if ctx.needs_input_grad[0]:
            common = torch.addcmul(total, centred, along * rstd)
            of_x = torch.addcmul(grad, common, share, value=-1).mul_(scale).to(kind)
        flat = grad.shape[1:3]
        of_weight = along.view(flat).to(weight_kind) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, total.view(flat).to(bias_kind) if ctx.needs_input_grad[2] else None, None, None


def _along(numbers: Tensor, x: Tensor) -> Tensor:
    """Reshape [k, C] to multiply [B, k, C, ...]."""
    return numbers.view(1, *numbers.shape, *[1] * (x.dim() - 3))
