"""The task of forecasting a time series."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["Forecast"]


class Forecast(Task):
    """Prediction of the d numbers that follow a window of a time series.

    Outputs are [..., d]; targets are these numbers and the scale of each, [..., 2, d]. Each client standardises its own
    series, so that a target contains its scale: an error times the scale is in the original unit. The loss is the mean
    squared error in the standardised unit. The score is `rmse`, the root of the mean squared error over all windows,
    steps and columns of a client, in the original unit; lower is better. `mae` is the mean absolute error over the
    same.

    Examples:
        >>> import torch
        >>> outputs, values = torch.tensor([[0.5], [1.0]]), torch.tensor([[0.0], [1.5]])
        >>> task, targets = Forecast(), torch.stack([values, torch.full_like(values, 10.0)], -2)
        >>> means = {name: v.mean() for name, v in task.statistics(outputs, targets).items()}
        >>> {name: round(float(v), 3) for name, v in task.finish(means).items()}
        {'rmse': 5.0, 'mae': 5.0}
    """

    numbers = ("rmse", "mae")
    names = ("squared", "mae")
    higher_is_better = False

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return (d,), the shape of one number for each step and column; see `Task.output_shape`."""
        if not targets.is_floating_point() or targets.dim() != 3 or targets.shape[1] != 2:
            kind = "classes" if num_classes else str(targets.dtype).removeprefix("torch.")
            raise UserError(
                "model.task Forecast needs targets with a scale for each, floating-point numbers [N, 2, d], as those "
                f"of data Series, but those of the data are {kind} {list(targets.shape)}; leave model.task out"
            )
        return (targets.shape[2],)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each sample, mean over steps and columns, [...].

        Args:
            outputs: [..., d].
            targets: [..., 2, d].
        """
        return (outputs - targets[..., 0, :]).square().mean(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return squared and absolute errors in the original unit, float64 [...] each; `finish` takes their means.

        Args:
            outputs: [..., d].
            targets: [..., 2, d].
        """
        values, scale = targets.double().unbind(-2)
        errors = (outputs.double() - values) * scale
        return {"squared": errors.square().mean(-1), "mae": errors.abs().mean(-1)}

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute `rmse` and `mae`; see `Task.finish`."""
        return {"rmse": means["squared"].sqrt(), "mae": means["mae"]}

    def for_metrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets without their scales, [..., d]; see `Task.for_metrics`."""
        return outputs, self.loss_targets(targets)

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return the targets without their scales, [..., d]; see `Task.loss_targets`."""
        return targets[..., 0, :].contiguous()
