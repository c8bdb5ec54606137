"""Batch and instance norms with the gradients of their formula, whatever the strides.

The backward pass of torch's batch norm on a CPU runs through memory where input and gradient are both contiguous, or
both have their channels last. Whether a tensor has, it asks by `is_contiguous`, which takes no notice of the strides of
dimensions of size 1; whether both have the same, by `suggest_memory_format`, which does. Channels last with an unusual
stride in such a dimension pass for contiguous then, and are read in the wrong order: the gradients are wrong by their
own size. It takes a batch of one sample, or maps of height or width 1. An instance norm is a batch norm of one sample
with N * C channels, and with an input that is contiguous: there it takes a gradient that lies as [H, W, N, C], with any
number of samples, as of an attention behind the norm. `docs/faults.md` has the smallest example.

Torch is handed the same numbers in the same memory here, with the strides that it gives such a tensor itself. Nothing
is launched for that on a GPU, whose kernels ask once and are right; only cuDNN's refuse such strides.
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
    """Which training batches of a plain network need its calls of norms mended, after `mend_instance_norms`."""

    NONE = "none: there are no norms"
    SINGLE = "those of one sample"
    ALL = "all: an instance norm is called by no layer of torch, or maps have a height or width of 1"

    def guard(self, samples: int) -> AbstractContextManager[Any]:
        """The context of a batch's forward and backward pass; where needed, each call of torch is looked at.

        Args:
            samples: of the batch.
        """
        needed = self is NormRisk.ALL or (self is NormRisk.SINGLE and samples == 1)
        return _MendedNorms() if needed else nullcontext()


class _MendedNorms(TorchFunctionMode):
    """The norms that are called in this context, by layers or by functions, have the gradients of their formula."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _MENDED.get(func, func)(*args, **(kwargs or {}))


def risk_of(network: nn.Module, scores: Tensor, run: Callable[[], object]) -> NormRisk:
    """Look for norms among a network's layers, and among the functions that a pass calls.

    Args:
        network: the plain network.
        scores: of a training pass of several samples, with their graph.
        run: does such a pass.
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
    """Give torch's own instance norm layers of an engine's copy the gradients of their formula, by hooks.

    They need it in every batch, where looking at each call of torch would take longer.
    """
    for layer in network.modules():
        if type(layer) in _INSTANCE_NORMS:
            layer.register_forward_hook(lambda layer, inputs, out: _watch_instances(out))


def _calls_norms(scores: Tensor) -> bool:
    """Whether a batch norm, which instance norms become, is in the graph of a pass."""
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
    """Looks for norms that need mending although the batch has several samples.

    Attributes:
        unknown: how many instance norms were called otherwise than by torch's own layers.
        ambiguous: whether a batch norm's input has dimensions of size 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown, self.ambiguous = 0, False

    def known(self, layer: nn.Module, inputs: Any) -> None:
        """A layer of torch calls an instance norm now."""
        self.unknown -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_INSTANCES:
            self.unknown += 1
        elif func in _MENDED:
            self.ambiguous |= _is_ambiguous(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


def usual_strides(x: Tensor) -> Tensor:
    """The same numbers in the same memory; channels last with the strides that torch gives them.

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
    return x.dim() in _CHANNELS_LAST and 1 in x.shape


def _has_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()])


def _of_instances(grad: Tensor) -> Tensor:
    """A gradient of an instance norm's output [N, C, ...], of which [1, N * C, ...] does not have its channels last."""
    if grad.is_contiguous() or grad.device.type == "cuda":
        return grad  # almost always; on a GPU it would be copied for nothing
    inner = grad.flatten(0, 1).unsqueeze(0)
    return inner.contiguous().view(grad.shape) if _has_channels_last(inner) else inner.view(grad.shape)


def _batch_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mended(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Torch's function, with the gradients of its formula.

        Args:
            input: [N, C, ...].
            *args: as torch's.
            **kwargs: as torch's.
        """
        out = function(usual_strides(input), *args, **kwargs)
        if out.requires_grad and _is_ambiguous(out):
            out.register_hook(usual_strides)
        return out

    return mended


def _instance_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mended(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Torch's function, with the gradients of its formula.

        Args:
            input: [N, C, ...].
            *args: as torch's.
            **kwargs: as torch's.
        """
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
"""`F.batch_norm` with the gradients of its formula."""

instance_norm = _MENDED[F.instance_norm]
"""`F.instance_norm` with the gradients of its formula."""
