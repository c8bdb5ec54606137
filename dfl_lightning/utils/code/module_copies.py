"""Copies of a plain network that are trained in its place, and what a copy would lose."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from dfl_lightning.utils.errors import UserError, is_out_of_memory, reason


def copy_of(network: nn.Module) -> nn.Module:
    """A copy with parameters, buffers, layers and module hooks of its own.

    What `copy.deepcopy` refuses or gets wrong is put right: a tensor that a hook computed and left on its layer (as
    torch's old `weight_norm` and `prune` do) is copied without its history, for the next pass computes it again;
    parameters of a copied `torch.jit.script` layer become leaves of the graph, as they were.

    Raises:
        UserError: the network holds something that cannot be copied.
    """
    computed = {
        id(value): value.detach().clone()
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    try:
        copied = copy.deepcopy(network, computed)  # what is in the memo counts as copied
    except Exception as error:  # whatever a user's object can raise
        if is_out_of_memory(error):
            raise  # which says nothing about the network
        raise UserError(
            f"model.network {type(network).__name__} cannot be copied, and each client needs a copy "
            f"({reason(error)}); make what its layers keep copyable, or leave it outside of the network"
        ) from error
    for parameter in copied.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return copied


def refuse_gradient_hooks(network: nn.Module) -> None:
    """Refuse hooks on parameters: copies do not have them, so that they would be ignored.

    Raises:
        UserError: names the parameter.
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
    """The name of what one of torch's hooks computes on a layer before each pass, `weight` for example; or nothing."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            return hook._tensor_name
        if isinstance(hook, SpectralNorm | WeightNorm):
            return hook.name
    return ""


def pruning_masks(network: nn.Module) -> set[str]:
    """Names of the buffers in which `torch.nn.utils.prune` keeps which parameters are there."""
    return {
        f"{name}.{hook._tensor_name}_mask".removeprefix(".")
        for name, layer in network.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod)
    }
