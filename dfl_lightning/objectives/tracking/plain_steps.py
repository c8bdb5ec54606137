"""Checks that local steps are the gradient times the learning rate, which some objectives need, and their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.engines.draws import batches_of
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation, LocalTraining
    from dfl_lightning.round.record import Round


def steps_are_plain(local: LocalTraining) -> bool:
    """Return True if the optimizer is SGD without momentum in all rounds; weight decay and clipping are not checked."""
    optimizer = local.optimizer
    descends = optimizer.elementwise and optimizer.kind is torch.optim.SGD and "momentum" not in local.scheduled
    return descends and not any(options["momentum"] or options["maximize"] for options in optimizer.groups)


def decays_weights(local: LocalTraining) -> bool:
    """Return True if the optimizer has weight decay in some round."""
    return "weight_decay" in local.scheduled or any(options["weight_decay"] for options in local.optimizer.groups)


def require_change_per_step(federation: Federation, objective: object) -> None:
    """Require local training whose change, divided by steps and learning rate, is the mean of the steps' gradients.

    Args:
        federation: the run's local training and optimizer.
        objective: the objective that divides, for the message.

    Raises:
        UserError: the optimizer is not plain SGD with one group, gradients are clipped, or there are no local steps.
    """
    local, name = federation.local, f"objective {type(objective).__name__}"
    if not steps_are_plain(local):
        raise UserError(
            f"{name} reads mean gradients from what a round changed, which only plain steps allow; set model.optimizer "
            "to SGD without momentum, for example --model.optimizer SGD --model.optimizer.lr 0.05 "
            "--model.optimizer.momentum 0"
        )
    if len(local.optimizer.groups) > 1:
        raise UserError(
            f"{name} divides what a round changed by one learning rate; give model.optimizer a single group of "
            "parameters"
        )
    if local.clipped:
        raise UserError(f"{name} loses track of clipped gradients; drop trainer.gradient_clip_val")
    if local.rates is not None:
        raise UserError(f"{name} divides by one learning rate for all clients; leave the column lr out of per_client")
    if local.duration.is_empty or any(duration.is_empty for duration in local.durations or ()):
        raise UserError(f"{name} needs local steps; set model.local_epochs to 1 or more")


def local_steps(round: Round) -> Tensor:
    """Count the steps that each client takes in the round on the shared parameters, float64 [m]."""
    local, sizes = round.federation.local, round.federation.data.sizes("train").tolist()
    batches = [batches_of(size, round.batch_size) for size in sizes]
    steps = [local.duration_of(client).batches(number) for client, number in enumerate(batches)]
    return torch.tensor(steps, dtype=torch.float64)
