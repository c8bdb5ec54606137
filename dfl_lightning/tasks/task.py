"""What a network's outputs mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from dfl_lightning.utils.code.constructor_arguments import RecordsArguments

__all__ = ["MeanLoss", "Task"]


class Task(RecordsArguments, ABC):
    """Losses and numbers of single samples, which engines add up; never a mean.

    Outputs and targets have any number of leading dimensions, written `...`: [B] for a batch, [k, B] for the batches of
    k clients, where padding may follow the real samples. Everything is computed for each sample by itself, so that both
    engines, clients of unequal size and several processes agree. A mean is the sum over samples, divided by the sum of
    the samples' `weights`; `finish` makes the reported numbers of the means.

    Attributes:
        numbers: names of what `finish` returns; the first one is the `score`.
        higher_is_better: whether a higher score is the better one.
        percent: whether the score is a share from 0 to 1, which tables and charts show in percent.
        has_classes: whether targets are the numbers of classes, int64 [...], and outputs a score for each class, which
            methods that look at classes ask for.
    """

    numbers: ClassVar[tuple[str, ...]]
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False

    @property
    def score(self) -> str:
        """The number that decides where models are compared by one."""
        return self.numbers[0]

    def merit(self, scores: Tensor) -> Tensor:
        """Return the scores, or their negatives where a lower one is better: of two merits the higher is the better."""
        return scores if self.higher_is_better else -scores

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, [...], differentiable; what clients minimise is its mean.

        Args:
            outputs: of the network, [..., *output shape].
            targets: [..., *target shape].
        """

    @abstractmethod
    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what the reported numbers are made of, by name, [...] each; the same names at every call.

        Args:
            outputs: of the network, [..., *output shape].
            targets: [..., *target shape].
        """

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return the shape of a network's output for one sample, once the data are known; by default that of a target.

        The place to refuse targets that are not of this task, by a `UserError`.

        Args:
            targets: of all samples, [N, *target shape].
            num_classes: number of classes C; 0 where targets are no classes.
        """
        shape = tuple(targets.shape[1:])
        return (*shape, num_classes) if num_classes else shape

    def of_targets(self, targets: Tensor, scale: tuple[float, ...] | None) -> Task:
        """Return the task for the targets of one data set; by default the same one for all.

        Args:
            targets: of all samples, [N, *target shape], for which `output_shape` has found a shape.
            scale: of each column: a target times its scale is in the original unit; None: they are in it.
        """
        return self

    def weights(self, targets: Tensor) -> Tensor | None:
        """Return how much each sample counts in a mean, [...]; None: 1 each.

        Args:
            targets: [..., *target shape].
        """
        return None

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the reported numbers, as `numbers` names them, from the means of the statistics.

        Args:
            means: of each of the `statistics`, float64 of any one shape.
        """
        return dict(means)

    def for_metrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what torchmetrics are given of outputs and targets; by default both as they are.

        Args:
            outputs: of the network, [..., *output shape].
            targets: [..., *target shape].
        """
        return outputs, targets

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return what a user's loss is given of the targets; by default the targets.

        Args:
            targets: [..., *target shape].
        """
        return targets

    def users_loss(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a user's loss as engines call it, with the whole targets; itself, where these are what it is given.

        Args:
            loss: mean loss of a batch, from outputs and `loss_targets`.
        """
        if type(self).loss_targets is Task.loss_targets:
            return loss
        return partial(_on_loss_targets, self, loss)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics; those of the reported numbers, unless `finish` computes them from others."""
        return self.numbers

    def mean_loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the mean loss of a batch, from (outputs [B, ...], targets [B, ...])."""
        return MeanLoss(self)


def _on_loss_targets(task: Task, loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    return loss(outputs, task.loss_targets(targets))


class MeanLoss:
    """A task's losses as one number for a batch.

    Args:
        task: whose losses.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the samples of a batch, a scalar.

        Args:
            outputs: [B, *output shape].
            targets: [B, *target shape].
        """
        losses, weights = self.task.losses(outputs, targets), self.task.weights(targets)
        if weights is None:
            return losses.mean()
        return losses.sum() / weights.sum().clamp(min=1)

    def __eq__(self, other: Any) -> bool:
        """Whether it is the mean loss of the same task."""
        return isinstance(other, MeanLoss) and other.task is self.task

    def __hash__(self) -> int:
        return hash((MeanLoss, id(self.task)))
