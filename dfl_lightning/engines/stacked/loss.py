"""Mean losses of k clients' batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dfl_lightning.engines.stacked.kernels import WeightedCrossEntropy


class StackedLoss:
    """Each client's mean loss over its real samples.

    The plain cross-entropy is computed for all clients at once. Any other loss is called for each client on its real
    samples: whatever it does inside, it never sees padding or another client.

    Args:
        loss: (scores [B, C], labels [B]) -> mean loss of the batch.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss
        self.is_cross_entropy = is_plain_cross_entropy(loss)

    def __call__(self, scores: Tensor, labels: Tensor, sizes: Sequence[int], weights: Tensor) -> Tensor:
        """Losses [k] of scores [k, B, ...] and labels [k, B].

        Args:
            scores: of a batch.
            labels: of its samples.
            sizes: the first `sizes[i]` of client i are real.
            weights: the same as [k, B], see `Batch`.
        """
        if self.is_cross_entropy and scores.dim() == 3:
            return WeightedCrossEntropy.apply(scores.to(weights.dtype), labels, weights)  # layers may have reduced them
        losses = [self._loss(s[:size], y[:size]) for s, y, size in zip(scores, labels, sizes, strict=True)]
        return torch.stack(losses)


def is_plain_cross_entropy(loss: object) -> bool:
    """Whether a loss is `nn.CrossEntropyLoss` as it comes."""
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    as_it_comes = loss.reduction == "mean" and loss.label_smoothing == 0 and loss.ignore_index == -100
    return loss.weight is None and as_it_comes


def sample_weights(counts: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Weights in means over batches of `length`, [..., length]: `counts`, int64 [...], are real, the rest weigh 0."""
    counts = counts.unsqueeze(-1)
    return (torch.arange(length, device=counts.device) < counts).to(dtype) / counts.clamp(min=1)
