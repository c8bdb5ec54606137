"""The task of predicting numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["Regression"]

_ROUNDING = 1e-12
"""Share of the mean square below which the variance of a client's targets is a rounding error."""


class Regression(Task):
    """Prediction of d numbers for each sample.

    Outputs and targets are [..., d]. The loss is the mean squared error. The score is `rmse`, the root of the mean
    squared error; lower is better. `mae` is the mean absolute error, and `r2` the share of the targets' variance that
    is explained, 1 - sum of squared errors / sum of squared deviations from the mean of the evaluated targets. With
    several columns, errors and deviations are summed over all. If all targets are equal, as those of one sample are,
    `r2` is undefined, NaN. The loss is in the unit of the targets that clients train on; `rmse` and `mae` are in the
    original unit, if the data have standardised the targets.

    Args:
        scale: one factor for each column: a target times its scale is in the original unit; null means the scale of
            the data, or 1.

    Examples:
        >>> outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        >>> task = Regression()
        >>> means = {name: v.mean() for name, v in task.statistics(outputs, targets).items()}
        >>> {name: round(float(v), 3) for name, v in task.finish(means).items()}
        {'rmse': 1.414, 'mae': 1.0, 'r2': 0.111}
    """

    numbers = ("rmse", "mae", "r2")
    higher_is_better = False
    percent = False

    def __init__(self, scale: tuple[float, ...] | None = None) -> None:
        if scale is not None and not (scale and all(0 < number < float("inf") for number in scale)):
            raise UserError(f"model.task Regression: scale={list(scale)}; give a number above 0 for each column")
        self.scale = None if scale is None else tuple(scale)

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return (d,), the shape of one number for each column of the targets; see `Task.output_shape`."""
        if not targets.is_floating_point() or targets.dim() != 2:
            kind = "classes" if num_classes else str(targets.dtype).removeprefix("torch.")
            raise UserError(
                f"model.task Regression needs targets that are floating-point numbers [N] or [N, d], but those of the "
                f"data are {kind} {list(targets.shape)}; leave model.task out, or give the targets as float32"
            )
        if self.scale is not None and len(self.scale) != targets.shape[1]:
            raise UserError(
                f"model.task Regression: scale has {len(self.scale)} numbers, but targets have {targets.shape[1]} "
                "columns"
            )
        return (targets.shape[1],)

    def of_targets(self, targets: Tensor, scale: tuple[float, ...] | None) -> Regression:
        """Return the task with the scale of the data, so that errors are in the original unit; see `Task.of_targets`.

        A scale that the user has given has precedence.
        """
        columns = targets.shape[1]
        return Regression(self.scale or scale or (1.0,) * columns)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each sample, mean over its columns, [...].

        Args:
            outputs: [..., d].
            targets: [..., d].
        """
        return (outputs - targets).square().mean(-1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics: squared and absolute errors, squares of the targets, and each column of targets."""
        return ("squared", "absolute", "square", *self._targets)

    @property
    def _targets(self) -> list[str]:
        return [f"target{column}" for column in range(1 if self.scale is None else len(self.scale))]

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return errors and targets in the original unit, float64 [...] each; `finish` computes the scores from them.

        Args:
            outputs: [..., d].
            targets: [..., d].
        """
        outputs, targets = outputs.double(), targets.double()
        if self.scale is not None and set(self.scale) != {1.0}:
            scale = self.scale[0] if len(self.scale) == 1 else targets.new_tensor(self.scale)
            outputs, targets = outputs * scale, targets * scale
        errors = outputs - targets
        by_column = {"squared": errors.square(), "absolute": errors.abs(), "square": targets.square()}
        means = {name: values.mean(-1) for name, values in by_column.items()}
        return means | dict(zip(self._targets, targets.unbind(-1), strict=True))

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute `rmse`, `mae` and `r2`; see `Task.finish`."""
        squared, square = means["squared"], means["square"]
        columns = torch.stack([means[name] for name in self._targets])
        variance = square - columns.square().mean(0)
        alike = variance <= _ROUNDING * square
        explained = 1 - squared / torch.where(alike, 1.0, variance)
        return {"rmse": squared.sqrt(), "mae": means["absolute"], "r2": torch.where(alike, torch.nan, explained)}
