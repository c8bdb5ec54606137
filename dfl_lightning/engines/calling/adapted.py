"""Networks whose forward pass takes rows of packed inputs, returns scores, and draws from a source of masks.

A copy of the user's network gets a class of its own, made from the network's class, with another `forward`. All names
of layers, parameters and buffers stay as they are, and so does whatever calls the network.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from dfl_lightning.data.parts import Parts
from dfl_lightning.engines.calling.own_draws import OwnDraws
from dfl_lightning.engines.dropout_layers import MaskSource, StreamDropout, replace_dropout_layers
from dfl_lightning.utils.errors import UserError

_GLOBAL_GENERATORS = threading.Lock()
"""Lock of all forward passes that draw from torch's global generators, which all threads share."""

_ADAPTED = "_of_dfl_lightning"
"""Attribute of a prepared network with its source of masks and its calling."""


@dataclass(frozen=True)
class Calling:
    """Form of a network's calls.

    Args:
        parts: the tensors that a row of inputs consists of; None: the row is the input.
        has_scores: True if the network returns an object or a dict with `logits` instead of a tensor.
        draws: True if a training pass calls random functions of torch, in addition to dropout layers.
        foreign: where a training pass draws from torch's global generator by other functions than those of
            `own_draws.OWN`; empty if it does not.
    """

    parts: Parts | None = None
    has_scores: bool = False
    draws: bool = False
    foreign: str = ""


@dataclass
class _Adaptation:
    """Calling and masks of a prepared network, and the `forward` that the object itself has, if it has one."""

    calling: Calling
    source: MaskSource
    forward: Callable[..., Any] | None = None


def prepare(network: nn.Module, calling: Calling) -> MaskSource:
    """Change a copy of a network, in place, so that it can be called with a batch of inputs, and return its masks.

    Args:
        network: the copy.
        calling: how the user's network is called.

    Raises:
        UserError: the network is scripted, and takes several inputs or returns several outputs.
    """
    source = replace_dropout_layers(network)
    object.__setattr__(network, _ADAPTED, _Adaptation(calling, source))
    if isinstance(network, torch.jit.ScriptModule):
        if calling != Calling():
            raise UserError(
                f"model.network {type(network).__name__} is scripted; one with inputs of several parts, with `logits` "
                "or with random functions must be an ordinary module"
            )
    elif calling != Calling() or len(inspect.signature(network.forward).parameters) != 1:
        vars(network)[_ADAPTED].forward = vars(network).pop("forward", None)
        network.__class__ = _adapted_class(type(network))
    return source


def source_of(network: nn.Module) -> MaskSource:
    """Return the source of masks of a network whose dropout layers have been replaced, or of a copy of it."""
    return _adaptation(network).source


def calling_of(network: nn.Module) -> Calling:
    """Return how the user's network is called; in the usual way if it has not been prepared."""
    return _adaptation(network).calling


def scores_of(outputs: Any) -> Any:
    """Return a network's scores: its outputs, or their `logits`.

    Args:
        outputs: a tensor, or an object or a dict with `logits`.
    """
    if isinstance(outputs, Tensor | fx.Proxy):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def _adaptation(network: nn.Module) -> _Adaptation:
    if _ADAPTED in vars(network):
        return cast("_Adaptation", vars(network)[_ADAPTED])
    sources = (layer.source for layer in network.modules() if isinstance(layer, StreamDropout))
    return _Adaptation(Calling(), next(sources, MaskSource()))


def _adapted_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Make a subclass of a network's class, of the same name, with a forward pass of packed inputs."""

    def forward(self: nn.Module, inputs: Tensor) -> Any:
        """Call the network of the user with the parts of a batch, [B, ...], and return its scores."""
        adaptation = _adaptation(self)
        calling, source = adaptation.calling, adaptation.source
        args, kwargs = ([inputs], dict[str, Any]()) if calling.parts is None else calling.parts.arguments(inputs)
        with ExitStack() as contexts:
            if self.training and (calling.draws or calling.foreign) and not isinstance(inputs, fx.Proxy):
                if calling.foreign:
                    contexts.enter_context(_seeded(source.key, inputs.device))
                contexts.enter_context(OwnDraws(source))
            if adaptation.forward is not None:
                outputs = adaptation.forward(*args, **kwargs)
            else:
                outputs = kind.forward(self, *args, **kwargs)
        return scores_of(outputs) if calling.has_scores else outputs

    return cast("type[nn.Module]", type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__}))


@contextmanager
def _seeded(key: Tensor, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators from the key of a client's step, and restore them at the end of a pass.

    Args:
        key: int32 [2].
        device: the network's device.
    """
    start, stride = (word & 0xFFFFFFFF for word in key.tolist())
    with _GLOBAL_GENERATORS:
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed((start << 31) ^ stride)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
