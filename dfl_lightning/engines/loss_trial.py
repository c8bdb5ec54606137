"""A loss tried on scores and labels before the first round."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from dfl_lightning.engines.coupling import same
from dfl_lightning.engines.optimizers import name_of
from dfl_lightning.engines.placing import Loss
from dfl_lightning.utils.errors import UserError, reason, reported_as


def try_loss(loss: Loss, scores: Tensor, labels: Tensor) -> bool:
    """Call a loss once, with its gradient.

    Args:
        loss: (scores [B, C], labels [B]) -> mean loss of the batch.
        scores: of a batch.
        labels: its classes.

    Returns:
        Whether the loss writes into its scores or labels.

    Raises:
        UserError: it fails, or does not return one number that has a gradient.
    """
    name = f"model.loss {name_of(loss)}"
    of = f"scores [{len(scores)}, {scores.shape[1]}] and labels [{len(labels)}]"
    leaf, classes = scores.detach().clone().requires_grad_(), labels.clone()
    with torch.enable_grad(), warnings.catch_warnings():
        given = leaf * 1  # a leaf cannot be written into, the scores of a network can
        # torch's way to say that it compares each score with each label of the batch
        warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
        elsewhere = scores.device.type != "cpu"
        where = f" on {scores.device}; a module's buffers and a partial's tensors are moved there" * elsewhere
        given_is = f"it is given class scores and class numbers{where}"
        with reported_as(lambda error: UserError(f"{name} fails on {of} ({reason(error)}); {given_is}")):
            value = loss(given, classes)
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
        hint = ", for example by reduction='mean'" if isinstance(value, Tensor) else ""
        raise UserError(f"{name} returns {got}; it must return one number as a tensor, the batch's mean loss{hint}")
    if not value.requires_grad:
        raise UserError(
            f"{name} returns a number without a gradient ({str(value.dtype).removeprefix('torch.')}); "
            "it must be computed from the scores by differentiable operations of torch"
        )
    with reported_as(lambda error: UserError(f"{name} has no gradient on {of} ({reason(error)})"), RuntimeError):
        torch.autograd.grad(value, leaf, allow_unused=True)
    return not (same(given.detach(), scores.detach()) and torch.equal(classes, labels))


def on_copies(loss: Loss) -> Loss:
    """The same loss, for scores and labels that are needed afterwards."""
    return functools.partial(_on_copies, loss)


def _on_copies(loss: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    return loss(scores.clone(), labels.clone())
