"""The default task for each kind of target."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.tasks.classification import Classification
from dfl_lightning.tasks.forecast import Forecast
from dfl_lightning.tasks.multi_label import MultiLabel
from dfl_lightning.tasks.next_token import NextToken
from dfl_lightning.tasks.regression import Regression
from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["default_task"]


def default_task(targets: Tensor, num_classes: int) -> Task:
    """Choose the task that fits the type and the shape of the targets.

    Classes [N] give `Classification`, lines of tokens [N, T] `NextToken`, bool `MultiLabel`, floating-point numbers
    [N, d] `Regression`, and numbers with their scales [N, 2, d] `Forecast`.

    Args:
        targets: targets of all samples, [N, *target shape].
        num_classes: number of classes C; 0 if targets are not classes.

    Raises:
        UserError: no task follows from the targets.

    Examples:
        >>> import torch
        >>> type(default_task(torch.rand(5, 1), 0)).__name__
        'Regression'
    """
    if num_classes and targets.dim() == 1:
        return Classification()
    if num_classes and targets.dim() == 2:
        return NextToken()
    if targets.dtype == torch.bool:
        return MultiLabel()
    if targets.is_floating_point():
        return Regression() if targets.dim() < 3 else Forecast()
    kind = str(targets.dtype).removeprefix("torch.")
    raise UserError(f"the data have targets {kind} {list(targets.shape)}, which no task follows from; set model.task")
