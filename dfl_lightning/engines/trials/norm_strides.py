"""Batch and instance norms with correct gradients for all strides.

The backward pass of torch's batch norm on a CPU has fast loops for input and gradient that are both contiguous, or both
channels-last. It tests each tensor by `is_contiguous`, which ignores the strides of dimensions of size 1, and compares
the two by `suggest_memory_format`, which does not ignore them. So a channels-last tensor with an unusual stride in such
a dimension counts as contiguous, and is read in the wrong order: the errors are as large as the gradients. This happens
with a batch of one sample, or with maps of height or width 1. Torch computes an instance norm as a batch norm of one
sample with N * C channels and a contiguous input. There it happens, with any number of samples, if the gradient lies in
memory as [H, W, N, C], for example behind an attention layer. `docs/faults.md` has the smallest example.

Here torch gets the same numbers in the same memory, with the strides that it gives such a tensor itself. On a GPU this
launches no kernel; the GPU's own kernels are correct, only cuDNN's refuse such strides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class NormRisk(Enum):
    """Training batches of a network whose calls of norms still need the correction, after `mend_instance_norms`."""

    NONE = "none: there are no norms"
    SINGLE = "those of one sample"
    ALL = "all: an instance norm is called by no layer of torch, or maps have a height or width of 1"

    def guard(self, samples: int) -> AbstractContextManager[Any]:
        """Return the context for the forward and backward pass of a batch with so many samples.

        It corrects the calls of norms if the batch needs it; this intercepts each call of torch.
        """
        needed = self is NormRisk.ALL or (self is NormRisk.SINGLE and samples == 1)
        return _MendedNorms() if needed else nullcontext()


class _MendedNorms(TorchFunctionMode):
    """Context in which norms, called by layers or as functions, have correct gradients."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _MENDED.get(func, func)(*args, **(kwargs or {}))


def risk_of(network: nn.Module, scores: Tensor, run: Callable[[], object]) -> NormRisk:
    """Determine the training batches that need the correction, from the norms that a network's pass calls.

    Args:
        network: the network for one client.
        scores: outputs of a training pass of several samples, with their autograd graph.
        run: function that does such a pass.
    """
    norms = [layer for layer in network.modules() if isinstance(layer, _NormBase)]
    if not norms and not _calls_norms(scores):
        return NormRisk.NONE
    watch = _Watch()
    hooks = [layer.register_forward_pre_hook(watch.known) for layer in norms if type(layer) in _INSTANCE_NORMS]
    try:
        with watch:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return NormRisk.ALL if watch.unknown or watch.ambiguous else NormRisk.SINGLE


def mend_instance_norms(network: nn.Module) -> None:
    """Correct the gradients of torch's instance norm layers by hooks, in an engine's copy of the network.

    These layers need the correction in every batch; intercepting each call of torch would take longer.
    """
    for layer in network.modules():
        if type(layer) in _INSTANCE_NORMS:
            layer.register_forward_hook(lambda layer, inputs, out: _watch_instances(out))


def _calls_norms(scores: Tensor) -> bool:
    """Return True if the autograd graph of a pass contains a batch norm; instance norms appear as such."""
    nodes, seen = [scores.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if "BatchNorm" in node.name():
            return True
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
    return False


class _Watch(TorchFunctionMode):
    """Context that finds norms that need the correction although the batch has several samples.

    Attributes:
        unknown: number of calls of instance norms that do not come from torch's own layers.
        ambiguous: True if a batch norm's input has dimensions of size 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown, self.ambiguous = 0, False

    def known(self, layer: nn.Module, inputs: Any) -> None:
        """Subtract the call of an instance norm that a layer of torch is about to make."""
        self.unknown -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_INSTANCES:
            self.unknown += 1
        elif func in _MENDED:
            self.ambiguous |= _is_ambiguous(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


def usual_strides(x: Tensor) -> Tensor:
    """View a channels-last tensor with the strides that torch gives it itself; return other tensors unchanged.

    Args:
        x: [N, C, ...].

    Examples:
        >>> x = torch.empty(1, 2, 3, 4).as_strided((1, 2, 3, 4), (2, 1, 8, 2))
        >>> usual_strides(x).stride()
        (24, 1, 8, 2)
    """
    if not _is_ambiguous(x) or not _has_channels_last(x):
        return x
    last = x.movedim(1, -1)
    return last.flatten().view(last.shape).movedim(-1, 1)


def _is_ambiguous(x: Tensor) -> bool:
    """Return True if strides can be those of both orders, channels first and last, since a dimension has one entry."""
    return x.dim() in _CHANNELS_LAST and 1 in x.shape


def _has_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()])


def _of_instances(grad: Tensor) -> Tensor:
    """Copy a gradient of an instance norm's output [N, C, ...] if its view [1, N * C, ...] is channels-last."""
    if grad.is_contiguous() or grad.device.type == "cuda":
        return grad  # This is the usual case; a GPU does not need the copy.
    inner = grad.flatten(0, 1).unsqueeze(0)
    return inner.contiguous().view(grad.shape) if _has_channels_last(inner) else inner.view(grad.shape)


def _batch_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mended(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call torch's function for an input [N, C, ...], and correct the gradient by a hook."""
        out = function(usual_strides(input), *args, **kwargs)
        if out.requires_grad and _is_ambiguous(out):
            out.register_hook(usual_strides)
        return out

    return mended


def _instance_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mended(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call torch's function for an input [N, C, ...], and correct the gradient by a hook."""
        out = function(input, *args, **kwargs)
        _watch_instances(out)
        return out

    return mended


def _watch_instances(out: Tensor) -> None:
    if out.requires_grad and out.dim() in _CHANNELS_LAST:
        out.register_hook(_of_instances)


_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_OF_INSTANCES = (F.instance_norm, torch.instance_norm)
_MENDED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **{function: _batch_norm(function) for function in (F.batch_norm, torch.batch_norm)},
    **{function: _instance_norm(function) for function in _OF_INSTANCES},
}

batch_norm = _MENDED[F.batch_norm]
"""`F.batch_norm` with correct gradients."""

instance_norm = _MENDED[F.instance_norm]
"""`F.instance_norm` with correct gradients."""
