"""Operations with backward passes that are faster than autograd's: a batched linear layer and the cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_autocast(operands: tuple[Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convert the operands of a product as autocast would, since it does not apply to custom autograd functions."""
    device = operands[0].device.type
    if not torch.is_autocast_enabled(device):
        return operands
    lower, (rows, weight, bias) = torch.get_autocast_dtype(device), operands
    return rows.to(lower), weight.to(lower), None if bias is None else bias.to(lower)


class BatchedLinear(torch.autograd.Function):
    """Linear layers of k clients.

    Autograd's backward pass of a batched product returns the weights' gradient transposed. Copying it to the weights'
    layout takes a third of a step of a small perceptron; here the gradient is computed in that layout.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute outputs [k, N, O] from inputs [k, N, I], weight [k, O, I] and bias [k, O] or None."""
        wants_inputs, wants_weight, _ = ctx.needs_input_grad
        # The inputs of a frozen layer, which are as large as an activation, are not kept.
        ctx.save_for_backward(inputs if wants_weight else None, weight if wants_inputs else None)
        outputs = torch.bmm(inputs, weight.mT)
        return outputs if bias is None else outputs.add_(bias.unsqueeze(1))  # This is faster on CPUs than baddbmm.

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Compute the needed gradients of inputs, weight and bias."""
        inputs, weight = ctx.saved_tensors
        wants_inputs, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if wants_inputs else None,
            torch.bmm(grad.mT, inputs) if wants_weight else None,
            grad.sum(1) if wants_bias else None,
        )


class WeightedCrossEntropy(torch.autograd.Function):
    """Cross-entropies of k clients' batches with a weight for each sample."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Compute losses [k], weighted sums over samples, from scores [k, B, C], labels [k, B] and weights [k, B]."""
        losses, softmax = cross_entropies(scores, labels)
        ctx.save_for_backward(softmax, labels, weights)
        return (losses * weights).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Compute the gradient of the scores: softmax - one-hot, times each sample's weight."""
        softmax, labels, weights = ctx.saved_tensors
        scale = (weights * grad.unsqueeze(1)).unsqueeze(-1)
        return (softmax * scale).scatter_add_(-1, labels.unsqueeze(-1), -scale), None, None


FULL_VECTOR = 16
"""Number of classes that fill a vector register of AVX-512 in float32. With fewer, torch's `log_softmax` computes score
by score, and takes four times as long as the operations below; with AVX2 both take about the same time."""


def cross_entropies(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each sample, [...], and its softmax, [..., C].

    Args:
        scores: [..., C].
        labels: int64 [...].

    Examples:
        >>> losses, softmax = cross_entropies(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]]), torch.tensor([1, 1]))
        >>> losses.tolist(), softmax.tolist()
        ([0.6931471824645996, inf], [[0.5, 0.5], [1.0, 0.0]])
    """
    labels = labels.unsqueeze(-1)
    if scores.shape[-1] >= FULL_VECTOR or not scores.is_cpu:
        log_softmax = scores.log_softmax(-1)
        return -log_softmax.gather(-1, labels).squeeze(-1), log_softmax.exp()
    largest = scores.amax(-1, keepdim=True)
    softmax = (scores - largest).exp_()
    total = softmax.sum(-1, keepdim=True)
    losses = total.log() - (scores.gather(-1, labels) - largest)
    return losses.squeeze(-1), softmax.div_(total)
