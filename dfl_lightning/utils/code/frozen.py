"""Frozen parts of a network: parameters without a gradient, and norms that stay in evaluation mode."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenNorm:
    """Part of a batch norm's class that keeps the layer in evaluation mode; see `keep_frozen_norms`."""

    def train(self, mode: bool = True) -> Self:
        """Keep evaluation mode, whatever mode the network is put into."""
        super().train(False)  # type: ignore[misc]
        return self


def frozen_norms(network: nn.Module) -> list[str]:
    """List the batch norms with running statistics whose parameters are all frozen, by name.

    A batch norm without parameters (`affine=False`) is none of them.
    """
    return [
        name
        for name, layer in network.named_modules()
        if isinstance(layer, _BatchNorm)
        and layer.track_running_stats
        and any(True for _ in layer.parameters())
        and not any(parameter.requires_grad for parameter in layer.parameters())
    ]


def keep_frozen_norms(network: nn.Module) -> None:
    """Keep the frozen batch norms of a network in evaluation mode, in place.

    A training pass then uses their running statistics, and does not change them.
    """
    layers = dict(network.named_modules())
    for name in frozen_norms(network):
        layer = layers[name]
        if not isinstance(layer, FrozenNorm):
            kind: Any = type(layer)
            layer.__class__ = _frozen(kind)
        layer.eval()


@functools.cache
def _frozen(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive the class of a frozen norm from the norm's class, with its name and module, as torch.fx reads them."""
    return type(kind.__name__, (FrozenNorm, kind), {"__module__": kind.__module__})


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a network by name, tied ones once."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def stand_ins(network: nn.Module, base: Mapping[str, Tensor]) -> dict[int, Any]:
    """Return what a copy of the network has instead of its own tensors; see `module_copies.copy_of`.

    Args:
        network: the network that is copied.
        base: tensors by the name of the parameter or buffer that they replace.
    """
    own = tensors_of(network)
    return {
        id(own[name]): nn.Parameter(value, requires_grad=False) if isinstance(own[name], nn.Parameter) else value
        for name, value in base.items()
    }


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of tensors with their names, types and shapes; it does not depend on their device.

    Examples:
        >>> hash_of({"a": torch.ones(2)}) == hash_of({"a": torch.ones(2).clone()})
        True
        >>> hash_of({"a": torch.ones(2)}) == hash_of({"b": torch.ones(2)})
        False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().reshape(-1).contiguous()
        digest.update(flat.view(torch.uint8).cpu().numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()[:16]
