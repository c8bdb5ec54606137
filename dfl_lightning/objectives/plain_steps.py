"""Whether a local step is the gradient times the learning rate, which some objectives count on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dfl_lightning.round.federation import LocalTraining


def steps_are_plain(local: LocalTraining) -> bool:
    """The optimizer is SGD, without momentum in any round; weight decay and clipping are the caller's to look at.

    Args:
        local: how clients train.
    """
    optimizer = local.optimizer
    descends = optimizer.elementwise and optimizer.kind is torch.optim.SGD and "momentum" not in local.scheduled
    return descends and not any(options["momentum"] or options["maximize"] for options in optimizer.groups)
