"""A loss tried on scores and labels before the first round."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dfl_lightning.bank.coupling import same
from dfl_lightning.errors import UserError, reason

Loss = Callable[[Tensor, Tensor], Tensor]


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
    name = f"model.loss {getattr(loss, '__name__', type(loss).__name__)}"
    of = f"scores [{len(scores)}, {scores.shape[1]}] and labels [{len(labels)}]"
    leaf, classes = scores.detach().clone().requires_grad_(), labels.clone()
    with torch.enable_grad(), warnings.catch_warnings():
        given = leaf * 1  # a leaf cannot be written into, the scores of a network can
        # torch's way to say that it compares each score with each label of the batch
        warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
        try:
            value = loss(given, classes)
        except Exception as error:  # whatever a user's loss can raise
            raise UserError(
                f"{name} fails on {of} ({reason(error)}); it is given class scores and class numbers"
            ) from error
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
        hint = ", for example by reduction='mean'" if isinstance(value, Tensor) else ""
        raise UserError(f"{name} returns {got}; it must return one number as a tensor, the batch's mean loss{hint}")
    if not value.requires_grad:
        raise UserError(
            f"{name} returns a number without a gradient ({str(value.dtype).removeprefix('torch.')}); "
            "it must be computed from the scores by differentiable operations of torch"
        )
    try:
        torch.autograd.grad(value, leaf, allow_unused=True)
    except RuntimeError as error:
        raise UserError(f"{name} has no gradient on {of} ({reason(error)})") from error
    return not (same(given.detach(), scores.detach()) and torch.equal(classes, labels))


def on_copies(loss: Loss) -> Loss:
    """The same loss, for scores and labels that are needed afterwards."""
    return lambda scores, labels: loss(scores.clone(), labels.clone())


def placed(loss: Loss, device: torch.device, dtype: torch.dtype) -> Loss:
    """The same loss where the scores are; a copy, if it has numbers of its own (weights of classes) that are not."""
    if not isinstance(loss, nn.Module):
        return loss
    own = [*loss.parameters(), *loss.buffers()]
    if all(t.device == device and (t.dtype == dtype or not t.is_floating_point()) for t in own):
        return loss
    return copy.deepcopy(loss).to(device, dtype)
