"""The two operations whose own backward pass pays: a batched linear layer and the cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_autocast(operands: tuple[Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands of a product as torch's autocast would have them, which does not look into functions of our own."""
    device = operands[0].device.type
    if not torch.is_autocast_enabled(device):
        return operands
    lower, (rows, weight, bias) = torch.get_autocast_dtype(device), operands
    return rows.to(lower), weight.to(lower), None if bias is None else bias.to(lower)


class BatchedLinear(torch.autograd.Function):
    """k linear layers at once.

    Autograd's backward of a batched product returns the weights' gradient transposed, and laying it out again costs a
    third of a step of a small perceptron; here it is computed in the layout of the weights.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Inputs [k, N, I], weight [k, O, I], bias [k, O] or None -> [k, N, O]."""
        ctx.save_for_backward(inputs, weight)
        outputs = torch.bmm(inputs, weight.mT)
        return outputs if bias is None else outputs.add_(bias.unsqueeze(1))  # on CPUs faster than baddbmm

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of inputs, weight and bias, as far as they are wanted."""
        inputs, weight = ctx.saved_tensors
        wants_inputs, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if wants_inputs else None,
            torch.bmm(grad.mT, inputs) if wants_weight else None,
            grad.sum(1) if wants_bias else None,
        )


class WeightedCrossEntropy(torch.autograd.Function):
    """The cross-entropies of k clients' batches, each sample with its own weight."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Scores [k, B, C], labels [k, B], weights [k, B] -> loss [k], the weighted sum over the samples."""
        log_softmax = scores.log_softmax(-1)
        ctx.save_for_backward(log_softmax, labels, weights)
        return -(log_softmax.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * weights).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Softmax - one-hot, times each sample's weight."""
        log_softmax, labels, weights = ctx.saved_tensors
        scale = (weights * grad.unsqueeze(1)).unsqueeze(-1)
        scores_grad = log_softmax.exp().mul_(scale).scatter_add_(-1, labels.unsqueeze(-1), -scale)
        return scores_grad, None, None
