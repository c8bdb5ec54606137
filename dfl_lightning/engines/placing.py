"""Placement of a user's loss on the run's device; a loss with tensors on another device is copied."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.engines.optimizing.optimizers import name_of
from dfl_lightning.utils.errors import UserError, reason, reported_as

Loss = Callable[[Tensor, Tensor], Tensor]


def placed(loss: Loss, device: torch.device, dtype: torch.dtype) -> Loss:
    """Return the loss with its tensors on `device`, floating ones in `dtype`; the user's own object is not changed.

    Tensors are found in modules (parameters and buffers), in the module that a bound method belongs to, and among the
    arguments that a `functools.partial` binds. The loss itself is returned if all of them are on the device already.

    Raises:
        UserError: the loss must be copied, but cannot be.
    """
    what = f"model.loss {name_of(loss)} cannot be copied to {device} in {str(dtype).removeprefix('torch.')}"
    with reported_as(lambda error: UserError(f"{what} ({reason(error)}); make what it keeps copyable")):
        placed_loss: Loss = _placed(loss, device, dtype)
        return placed_loss


def parts_of(loss: Any) -> Iterator[Any]:
    """Yield the callables that a loss consists of: the loss itself, or the function and arguments of a partial.

    A method of a module is replaced by its module.
    """
    if isinstance(loss, functools.partial):
        for part in (loss.func, *loss.args, *loss.keywords.values()):
            yield from parts_of(part)
    elif callable(loss):
        owner = getattr(loss, "__self__", None)
        yield owner if isinstance(owner, nn.Module) else loss


def set_mode(loss: Loss, training: bool) -> None:
    """Put the modules of a loss into training mode, or into evaluation mode if `training` is False."""
    for part in parts_of(loss):
        if isinstance(part, nn.Module):
            part.train(training)


def refuse_untrained(loss: Loss) -> None:
    """Refuse a loss with trainable parameters, since optimizers get only the network's.

    Raises:
        UserError: a parameter requires a gradient; the message names it.
    """
    if not isinstance(loss, nn.Module):
        return
    name = next((name for name, parameter in loss.named_parameters() if parameter.requires_grad), None)
    if name is not None:
        raise UserError(
            f"model.loss {name_of(loss)} has the parameter '{name}', which no optimizer would train; "
            "make it a part of the network, or a buffer of the loss (register_buffer)"
        )


def _placed(part: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the part itself if its tensors are in place, else a copy with its tensors on the device."""
    if isinstance(part, Tensor):
        return part.to(device, dtype if part.is_floating_point() else None)
    if isinstance(part, nn.Module):
        tensors = [*part.parameters(), *part.buffers()]
        if all(t.device == device and (t.dtype == dtype or not t.is_floating_point()) for t in tensors):
            return part
        return copy.deepcopy(part).to(device, dtype)
    if isinstance(part, functools.partial):
        parts = [part.func, *part.args, *part.keywords.values()]
        function, *values = (_placed(value, device, dtype) for value in parts)
        if all(new is old for new, old in zip((function, *values), parts, strict=True)):
            return part
        count = len(part.args)
        return functools.partial(function, *values[:count], **dict(zip(part.keywords, values[count:], strict=True)))
    owner = getattr(part, "__self__", None)
    if isinstance(owner, nn.Module) and hasattr(part, "__func__"):
        new = _placed(owner, device, dtype)
        return part if new is owner else part.__func__.__get__(new)
    return part
