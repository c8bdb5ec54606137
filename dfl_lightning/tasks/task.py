"""The base class of tasks, and the mean loss of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from dfl_lightning.utils.code.constructor_arguments import RecordsArguments

__all__ = ["MeanLoss", "Task"]


class Task(RecordsArguments, ABC):
    """Losses and statistics of single samples, from which the engines compute the means.

    Outputs and targets have any number of leading dimensions, written `...`: [B] for a batch, [k, B] for the batches of
    k clients, in which padding may follow the real samples. Each sample is computed separately, so that both engines,
    clients of unequal size and several processes agree. A mean is the sum over samples, divided by the sum of the
    samples' `weights`; `finish` computes the reported scores from the means.

    Attributes:
        numbers: names of the values that `finish` returns; the first one is the `score`.
        higher_is_better: True if a higher score is better.
        percent: True if the score is a share from 0 to 1, which tables and charts show in percent.
        has_classes: True if targets are classes, int64 [...], and outputs a score for each class, as methods that
            compare clients by classes require.
    """

    numbers: ClassVar[tuple[str, ...]]
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False

    @property
    def score(self) -> str:
        """Name of the reported number that compares models."""
        return self.numbers[0]

    def merit(self, scores: Tensor) -> Tensor:
        """Return the scores, negated if a lower score is better, so that the higher merit is always better."""
        return scores if self.higher_is_better else -scores

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the differentiable loss of each sample, [...]; clients minimise its mean.

        Args:
            outputs: outputs of the network, [..., *output shape].
            targets: [..., *target shape].
        """

    @abstractmethod
    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the values of each sample from whose means `finish` computes the reported numbers.

        Args:
            outputs: outputs of the network, [..., *output shape].
            targets: [..., *target shape].

        Returns:
            Tensors [...] by name, with the same names at every call.
        """

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return the shape that a network's output for one sample must have, by default that of a target.

        A subclass raises `UserError` here if the targets do not fit the task.

        Args:
            targets: targets of all samples, [N, *target shape].
            num_classes: number of classes C; 0 if targets are not classes.
        """
        shape = tuple(targets.shape[1:])
        return (*shape, num_classes) if num_classes else shape

    def of_targets(self, targets: Tensor, scale: tuple[float, ...] | None) -> Task:
        """Return the task for the targets of one data set; by default the same one for all.

        Args:
            targets: targets of all samples, [N, *target shape], which `output_shape` has accepted.
            scale: one factor for each column: a target times its scale is in the original unit; None: targets are in
                the original unit.
        """
        return self

    def weights(self, targets: Tensor) -> Tensor | None:
        """Return the weight of each sample in a mean, [...]; None if all weigh 1.

        Args:
            targets: [..., *target shape].
        """
        return None

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the reported numbers, named by `numbers`, from the means of the statistics.

        Args:
            means: mean of each of the `statistics`, float64; all have the same shape.
        """
        return dict(means)

    def for_metrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Convert outputs and targets to what torchmetrics expect; by default both stay as they are.

        Args:
            outputs: outputs of the network, [..., *output shape].
            targets: [..., *target shape].
        """
        return outputs, targets

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Convert outputs to the probabilities of classes, or of labels; None, the default, if the task has neither.

        Args:
            outputs: outputs of the network, [..., *output shape].
        """
        return None

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return the part of the targets that a user's loss receives; by default all of it.

        Args:
            targets: [..., *target shape].
        """
        return targets

    def users_loss(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """Wrap a user's loss so that engines can call it with whole targets.

        The loss itself is returned if the task does not override `loss_targets`.

        Args:
            loss: mean loss of a batch, from outputs and `loss_targets`.
        """
        if type(self).loss_targets is Task.loss_targets:
            return loss
        return partial(_on_loss_targets, self, loss)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics; equal to `numbers`, unless `finish` computes these from other statistics."""
        return self.numbers

    def mean_loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function that computes the mean loss of a batch, from (outputs [B, ...], targets [B, ...])."""
        return MeanLoss(self)


def _on_loss_targets(task: Task, loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    return loss(outputs, task.loss_targets(targets))


class MeanLoss:
    """The mean loss of a batch, a function of outputs and targets.

    Args:
        task: the task whose `losses` are averaged, by its `weights`.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted mean of the losses of a batch, a scalar.

        Args:
            outputs: [B, *output shape].
            targets: [B, *target shape].
        """
        losses, weights = self.task.losses(outputs, targets), self.task.weights(targets)
        if weights is None:
            return losses.mean()
        return losses.sum() / weights.sum().clamp(min=1)

    def __eq__(self, other: Any) -> bool:
        """Return True if the other is the mean loss of the same task object."""
        return isinstance(other, MeanLoss) and other.task is self.task

    def __hash__(self) -> int:
        return hash((MeanLoss, id(self.task)))
