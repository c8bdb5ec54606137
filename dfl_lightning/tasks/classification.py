"""The task of predicting the class of a sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["Classification"]


class Classification(Task):
    """Prediction of one of C classes.

    Outputs are scores of classes [..., C], targets the classes, int64 [...]. The loss is the cross-entropy. The score
    is the accuracy `acc`: the share of samples whose class has the highest output. A prediction whose highest output is
    NaN or infinite counts as wrong.

    Examples:
        >>> import torch
        >>> outputs, targets = torch.tensor([[0.1, 0.9], [torch.nan, 0.0]]), torch.tensor([1, 0])
        >>> Classification().statistics(outputs, targets)
        {'acc': tensor([ True, False])}
    """

    numbers = ("acc",)
    percent = True
    has_classes = True

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return (C,), the shape of a score for each class; see `Task.output_shape`."""
        if targets.dtype != torch.int64 or not num_classes:
            kind = str(targets.dtype).removeprefix("torch.")
            raise UserError(
                f"model.task Classification needs targets that are classes, but those of the data are {kind} numbers; "
                "leave model.task out"
            )
        return (num_classes,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample's class, [...].

        Args:
            outputs: logits [..., C].
            targets: int64 [...].
        """
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Mark the samples whose predicted class is the target, bool [...].

        Args:
            outputs: logits, or probabilities, [..., C].
            targets: int64 [...].
        """
        # torch takes a NaN for the highest output, so that the class at its position would be the prediction.
        best = outputs.max(dim=targets.dim())
        return {"acc": (best.indices == targets) & best.values.isfinite()}

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Convert logits to the probabilities of classes, [..., C]; see `Task.probabilities`."""
        return outputs.softmax(-1)

    def mean_loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return `nn.CrossEntropyLoss`, for which the engines have faster kernels."""
        return nn.CrossEntropyLoss()
