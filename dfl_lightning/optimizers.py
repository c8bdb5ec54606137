"""Which optimizers act on each client by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dfl_lightning.errors import UserError

ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
"""Optimizers of `torch.optim` that update every number from its own history, so that clients can be stacked."""


def check_elementwise(factory: Callable[..., torch.optim.Optimizer]) -> None:
    """Refuse optimizers that couple parameters, or are not known not to.

    Args:
        factory: parameters -> optimizer.

    Raises:
        UserError: LBFGS, Muon, Adafactor and the like, by name.
    """
    optimizer = factory([nn.Parameter(torch.zeros(2, 2))])
    allowed = tuple(getattr(torch.optim, name) for name in ELEMENTWISE)
    if not isinstance(optimizer, allowed):
        raise UserError(
            f"model.optimizer {type(optimizer).__name__} is not known to update every number by itself, as clients "
            f"side by side need; choose one of {', '.join(ELEMENTWISE)}"
        )
