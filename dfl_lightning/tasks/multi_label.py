"""The task of predicting which of several labels a sample has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["MultiLabel"]


class MultiLabel(Task):
    """Prediction of any number of L labels for each sample.

    Outputs are logits, [..., L], targets 1 for a label that the sample has, otherwise 0, [..., L]. The loss is the
    binary cross-entropy, mean over labels. A label is predicted if its logit is above 0. The score is `micro_f1` =
    2 TP / (2 TP + FP + FN); true positives TP, false positives FP and false negatives FN are counted over all samples
    and labels of a client. It is undefined, NaN, if no sample has a label and none is predicted. `label_acc` is
    the share of labels that are predicted correctly, `subset_acc` the share of samples whose labels are all correct. A
    logit that is NaN or infinite counts as wrong.

    Examples:
        >>> import torch
        >>> outputs, targets = torch.tensor([[2.0, -1.0], [0.5, -3.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        >>> task = MultiLabel()
        >>> means = {name: v.double().mean() for name, v in task.statistics(outputs, targets).items()}
        >>> {name: round(float(v), 3) for name, v in task.finish(means).items()}
        {'micro_f1': 0.8, 'label_acc': 0.75, 'subset_acc': 0.5}
    """

    numbers = ("micro_f1", "label_acc", "subset_acc")
    names = ("found", "counted", "label_acc", "subset_acc")
    percent = True

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return (L,), the shape of a logit for each label; see `Task.output_shape`."""
        if targets.dtype != torch.bool or targets.dim() != 2:
            kind = "classes" if num_classes else str(targets.dtype).removeprefix("torch.")
            raise UserError(
                "model.task MultiLabel needs targets that are labels, bool [N, L], as those of data Vectors with "
                f"labels: true, but those of the data are {kind} {list(targets.shape)}; leave model.task out"
            )
        return (targets.shape[1],)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy of each sample, mean over its labels, [...].

        Args:
            outputs: logits [..., L].
            targets: 0 or 1, in the dtype of the outputs, [..., L].
        """
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Compute the statistics of each sample, [...].

        `found` counts the true positives, `counted` the labels of the sample plus the predicted labels. `label_acc` is
        the share of correct labels, `subset_acc` 1 if all labels are correct, otherwise 0.

        Args:
            outputs: logits [..., L].
            targets: 0 or 1, [..., L].
        """
        present = targets > 0.5
        predicted = torch.where(outputs.isfinite(), outputs > 0, ~present)
        right = (predicted == present).double()
        counted = present.sum(-1) + predicted.sum(-1)
        return {
            **{"found": (present & predicted).sum(-1), "counted": counted},
            **{"label_acc": right.mean(-1), "subset_acc": right.amin(-1)},
        }

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute `micro_f1`, `label_acc` and `subset_acc`; see `Task.finish`."""
        true_positives, counted = means["found"], means["counted"]
        f1 = 2 * true_positives / counted  # 0 / 0 is NaN
        return {"micro_f1": f1, "label_acc": means["label_acc"], "subset_acc": means["subset_acc"]}

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Convert logits to the probabilities of labels, [..., L]; see `Task.probabilities`."""
        return outputs.sigmoid()

    def for_metrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Convert logits to probabilities and targets to integers; see `Task.for_metrics`.

        torchmetrics would take logits for probabilities if all of a batch are between 0 and 1.
        """
        return outputs.sigmoid(), targets.long()
