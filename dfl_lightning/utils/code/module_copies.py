"""Copies of a user's network, and checks for hooks and parameters that a copy would not keep."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from dfl_lightning.utils.errors import UserError, is_out_of_memory, reason


def copy_of(network: nn.Module, instead: Mapping[int, Any] | None = None) -> nn.Module:
    """Copy a network with its parameters, buffers, layers and module hooks.

    Two cases that `copy.deepcopy` refuses or gets wrong are handled. A tensor that a hook has computed and stored in
    its layer (as torch's old `weight_norm` and `prune` do) is copied without its history, since the next pass computes
    it again. Parameters of a copied `torch.jit.script` layer become leaves of the graph again.

    Args:
        network: the network.
        instead: objects that the copy has in place of parts of the network, by the `id` of the part.

    Raises:
        UserError: the network contains something that cannot be copied.
    """
    computed = {
        id(value): value.detach().clone()
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    try:
        copied = copy.deepcopy(network, computed | dict(instead or {}))  # deepcopy takes objects of its memo for copied
    except Exception as error:  # a user's objects may raise any error
        if is_out_of_memory(error):
            raise  # a lack of memory is no fault of the network
        raise UserError(
            f"model.network {type(network).__name__} cannot be copied, and each client needs a copy "
            f"({reason(error)}); make what its layers keep copyable, or leave it outside of the network"
        ) from error
    for parameter in copied.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return copied


def uncompiled(network: nn.Module) -> tuple[nn.Module, bool]:
    """Return the network that `torch.compile` has wrapped, or the network itself, and whether it was compiled.

    Engines compute copies of a network in their own way, and the names of a wrapped one's parameters would begin with
    `_orig_mod.`.

    Raises:
        UserError: one of its layers is compiled.
    """
    wrapped = _is_compiled(network)
    inner = cast("nn.Module", network._orig_mod) if wrapped else network
    layer = next((name for name, layer in inner.named_modules() if name and _is_compiled(layer)), None)
    if layer is not None:
        raise UserError(
            f"model.network {type(inner).__name__}: layer '{layer}' is compiled (torch.compile); give the layer as it "
            "was, since engines compute copies of the network in their own way"
        )
    return inner, wrapped or getattr(inner, "_compiled_call_impl", None) is not None


def _is_compiled(layer: nn.Module) -> bool:
    kind = type(layer)  # importing the class itself would take seconds
    return kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")


def refuse_gradient_hooks(network: nn.Module) -> None:
    """Raise if a parameter has a gradient hook, which copies do not keep, so that it would be ignored.

    Raises:
        UserError: a parameter has a hook; the message names it.
    """
    for name, parameter in network.named_parameters():
        hooks = {
            "register_hook": parameter._backward_hooks,
            "register_post_accumulate_grad_hook": getattr(parameter, "_post_accumulate_grad_hooks", None),
        }
        for way, registered in hooks.items():
            if registered:
                raise UserError(
                    f"model.network {type(network).__name__}: parameter '{name}' has a gradient hook ({way}), which "
                    "the clients' models would not have; change gradients in the step of an objective, or by "
                    "register_full_backward_hook of its layer"
                )


def computed_parameter(layer: nn.Module) -> str:
    """Return the name of the parameter, for example `weight`, that a hook of torch computes before each pass; or ''."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            return hook._tensor_name
        if isinstance(hook, SpectralNorm | WeightNorm):
            return hook.name
    return ""


def pruning_masks(network: nn.Module) -> set[str]:
    """Return the names of the buffers that are masks of `torch.nn.utils.prune`."""
    return {
        f"{name}.{hook._tensor_name}_mask".removeprefix(".")
        for name, layer in network.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod)
    }
