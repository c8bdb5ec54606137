"""Several labels, each of which holds or does not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["MultiLabel"]


class MultiLabel(Task):
    """Outputs are logits of L labels, [..., L], targets 1 where a label holds and 0 elsewhere, [..., L].

    The loss is the binary cross-entropy, mean over labels. A label is predicted where its logit is above 0. The score
    is `micro_f1` = 2 TP / (2 TP + FP + FN), of which true positives TP, false positives FP and misses FN are counted
    over all samples and labels of a client; as in scikit-learn it is 0 where no label holds and none is predicted.
    `label_acc` is the share of the labels that are right, `subset_acc` that of the samples whose labels all are. A
    logit that is NaN or infinite is wrong.

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
        """Return a logit for each label, (L,); see `Task.output_shape`."""
        if targets.dtype != torch.bool or targets.dim() != 2:
            kind = "classes" if num_classes else str(targets.dtype).removeprefix("torch.")
            raise UserError(
                "model.task MultiLabel needs targets that are labels, bool [N, L], as those of data Vectors with "
                f"labels: true, and those of the data are {kind} {list(targets.shape)}; leave model.task out"
            )
        return (targets.shape[1],)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy of each sample, mean over its labels, [...].

        Args:
            outputs: logits [..., L].
            targets: 0 or 1, of the type of the outputs, [..., L].
        """
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return counts of each sample, [...]: true positives, labels there plus labels predicted, right ones.

        Args:
            outputs: logits [..., L].
            targets: 0 or 1, [..., L].
        """
        there = targets > 0.5
        predicted = torch.where(outputs.isfinite(), outputs > 0, ~there)
        right = (predicted == there).double()
        counted = there.sum(-1) + predicted.sum(-1)
        return {
            **{"found": (there & predicted).sum(-1), "counted": counted},
            **{"label_acc": right.mean(-1), "subset_acc": right.amin(-1)},
        }

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `micro_f1`, `label_acc` and `subset_acc`; see `Task.finish`."""
        found, counted = means["found"], means["counted"]
        f1 = 2 * found / torch.where(counted == 0, 1.0, counted)
        return {"micro_f1": f1, "label_acc": means["label_acc"], "subset_acc": means["subset_acc"]}

    def for_metrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities, which torchmetrics would not tell from logits between 0 and 1, and whole numbers."""
        return outputs.sigmoid(), targets.long()
