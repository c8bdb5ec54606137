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
        losses, softmax = cross_entropies(scores, labels)
        ctx.save_for_backward(softmax, labels, weights)
        return (losses * weights).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Softmax - one-hot, times each sample's weight."""
        softmax, labels, weights = ctx.saved_tensors
        scale = (weights * grad.unsqueeze(1)).unsqueeze(-1)
        return (softmax * scale).scatter_add_(-1, labels.unsqueeze(-1), -scale), None, None


FULL_VECTOR = 16
"""Classes that fill a vector register of AVX-512 in float32. With fewer, torch's `log_softmax` computes score by score
there, and takes four times as long as the operations below; with AVX2 the two take about the same time."""


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
