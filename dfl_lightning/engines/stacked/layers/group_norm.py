"""Group norms of images that keep the memory format of their input.

On a GPU, torch's own group norm converts images to its own layout, the next convolution converts them back, and so does
the backward pass: four copies of an activation for each norm. Here channels-last images stay channels-last: sums are
computed channel by channel, and combined group by group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def keeps_layout(x: Tensor) -> bool:
    """Return True if `group_norm_in_layout` is faster for x, [B, C, ...].

    Only images are in channels-last memory. On a CPU torch's own norm does not copy them, and is faster.
    """
    return x.dim() == 4 and x.device.type != "cpu"


def group_norm_in_layout(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> Tensor:
    """Compute `F.group_norm` with an output in the memory format of the input.

    Statistics are float32, or float64 if x is.

    Args:
        x: [B, C, H, W].
        groups: number of groups of neighbouring channels; a divisor of C.
        weight: [C] or None.
        bias: [C] or None.
        eps: added to variances.
        dtype: type of the output.

    Returns:
        [B, C, H, W].
    """
    out: Tensor = _GroupNorm.apply(x, groups, weight, bias, eps, dtype)
    return out


class _GroupNorm(torch.autograd.Function):
    """Group norm with a backward pass of its own; G is the number of groups, D of channels of a group."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
    ) -> Tensor:
        """Compute the norm; see `group_norm_in_layout`."""
        kind = torch.promote_types(x.dtype, torch.float32)
        var, mean = torch.var_mean(x.to(kind), (2, 3), correction=0)  # Of each channel, [B, C].
        between, mean = torch.var_mean(mean.unflatten(1, (groups, -1)), 2, correction=0, keepdim=True)  # [B, G, 1]
        within = var.unflatten(1, (groups, -1)).mean(2, keepdim=True)
        rstd = within.add_(between).add_(eps).rsqrt_()
        scale = rstd if weight is None else rstd * weight.view(groups, -1)  # [B, G, 1] or [B, G, D]
        shift = -mean * scale if bias is None else torch.addcmul(bias.view(groups, -1), mean, scale, value=-1)
        out = torch.empty_like(x, dtype=dtype)  # Not a view, since the next layer may write into it.
        of_groups = (groups, -1)
        torch.addcmul(
            _over_places(shift), x.unflatten(1, of_groups), _over_places(scale), out=out.unflatten(1, of_groups)
        )
        ctx.save_for_backward(x, weight, mean, rstd, scale)
        ctx.bias_kind = None if bias is None else bias.dtype
        return out

    @staticmethod
    @once_differentiable  # The backward pass treats the statistics as constants.
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients of x, weight and bias."""
        x, weight, mean, rstd, scale = ctx.saved_tensors
        of_groups = (mean.shape[1], -1)
        grad = grad.to(mean.dtype)
        sums = grad.new_empty(2, *x.shape[:2])  # One tensor, so that one launch serves both.
        torch.sum(grad, (2, 3), out=sums[0])
        torch.sum(grad * x, (2, 3), out=sums[1])
        sums = sums.unflatten(2, of_groups)  # [2, B, G, D]
        sums[1].addcmul_(mean, sums[0], value=-1).mul_(rstd)  # Sums of the gradient times the normalised numbers.
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            of_bias, of_weight = sums.sum(1).flatten(1)
            of_weight = None if weight is None else of_weight.to(weight.dtype)
            of_bias = None if ctx.bias_kind is None else of_bias.to(ctx.bias_kind)
        if weight is not None:
            sums = sums * weight.view(of_groups)
        if ctx.needs_input_grad[0]:
            share = rstd / -(sums.shape[3] * x[0, 0].numel())
            level, slope = sums.sum(3, keepdim=True).mul_(share)  # [B, G, 1] each
            slope = slope * rstd
            level = level.addcmul_(mean, slope, value=-1)
            common = torch.addcmul(_over_places(level), x.unflatten(1, of_groups), _over_places(slope))
            of_x = common.addcmul_(grad.unflatten(1, of_groups), _over_places(scale)).flatten(1, 2).to(x.dtype)
        return of_x, None, of_weight, of_bias, None, None


def _over_places(numbers: Tensor) -> Tensor:
    """Reshape [B, G, D] to multiply images [B, G, D, H, W]."""
    return numbers[..., None, None]
