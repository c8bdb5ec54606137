"""Trial of a loss on scores and labels before the first round."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from dfl_lightning.engines.optimizing.optimizers import name_of
from dfl_lightning.engines.placing import Loss
from dfl_lightning.engines.trials.coupling import same
from dfl_lightning.utils.errors import UserError, reason, reported_as


def try_loss(loss: Loss, scores: Tensor, labels: Tensor) -> bool:
    """Call a loss once, and compute its gradient.

    Args:
        loss: (outputs [B, ...], targets [B, ...]) -> mean loss of the batch.
        scores: the network's outputs for a batch.
        labels: the batch's targets.

    Returns:
        True if the loss writes into its scores or labels.

    Raises:
        UserError: the loss fails, or does not return one number with a gradient.
    """
    name = f"model.loss {name_of(loss)}"
    classes_only = labels.dim() == 1 and not labels.is_floating_point()
    outputs_are, targets_are = ("scores", "labels") if classes_only else ("outputs", "targets")
    of = f"{outputs_are} {list(scores.shape)} and {targets_are} {list(labels.shape)}"
    leaf, classes = scores.detach().clone().requires_grad_(), labels.clone()
    with torch.enable_grad(), warnings.catch_warnings():
        given = leaf * 1  # A loss may write into the scores of a network, but not into a leaf.
        # Torch warns with these words when it broadcasts each score against each label of the batch.
        warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
        elsewhere = scores.device.type != "cpu"
        where = f" on {scores.device}; a module's buffers and a partial's tensors are moved there" * elsewhere
        what = "class scores and class numbers" if classes_only else "the network's outputs and the targets"
        given_is = f"it is given {what}{where}"
        with reported_as(lambda error: UserError(f"{name} fails on {of} ({reason(error)}); {given_is}")):
            value = loss(given, classes)
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
        hint = ", for example by reduction='mean'" if isinstance(value, Tensor) else ""
        raise UserError(f"{name} returns {got}; it must return one number as a tensor, the batch's mean loss{hint}")
    if not value.requires_grad:
        raise UserError(
            f"{name} returns a number without a gradient ({str(value.dtype).removeprefix('torch.')}); "
            f"it must be computed from the {outputs_are} by differentiable operations of torch"
        )
    with reported_as(lambda error: UserError(f"{name} has no gradient on {of} ({reason(error)})"), RuntimeError):
        torch.autograd.grad(value, leaf, allow_unused=True)
    return not (same(given.detach(), scores.detach()) and torch.equal(classes, labels))


def on_copies(loss: Loss) -> Loss:
    """Wrap a loss so that it gets copies of scores and labels, into which it may write."""
    return functools.partial(_on_copies, loss)


def _on_copies(loss: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    return loss(scores.clone(), labels.clone())
