"""Low-rank adapters of layers, added in place: the layer keeps its name, its weight and its class's attributes."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.utils.errors import UserError

A, B = "lora_A", "lora_B"
"""Names of the two factors of an adapter."""


class Adapter:
    """Part of a layer's class that adds `scaling * B A x` to what the layer computes (LoRA, arXiv 2106.09685).

    A is [rank, inputs] and B is [outputs, rank].
    """

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    scaling: float

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter's output to that of the layer, [..., outputs]."""
        plain: Tensor = super().forward(x)  # type: ignore[misc]
        inner = F.linear(x, self.lora_A)  # It is scaled rather than the output, which is larger.
        return plain + F.linear(self.scaling * inner, self.lora_B)

    def reset_parameters(self) -> None:
        """Draw A as a linear layer draws its weight, and set B to 0, so that the adapter begins as nothing."""
        if A in vars(self).get("_parameters", {}):  # the constructors of layers call this before there is an adapter
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            nn.init.zeros_(self.lora_B)


def size_of(layer: nn.Module) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a layer that can have an adapter; None for other layers.

    These are linear layers, and `Conv1D` of transformers, which is a linear layer with a transposed weight.
    """
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (weight.shape[0], weight.shape[1]) if _is_conv1d(layer) else None


def add_adapter(layer: nn.Module, name: str, rank: int, alpha: float) -> None:
    """Add an adapter to a layer, in place, with parameters drawn from torch's global generator.

    Args:
        layer: the layer; see `size_of`.
        name: name of the layer, for messages.
        rank: number of rows of A.
        alpha: the scaling is `alpha / rank`.

    Raises:
        UserError: the layer cannot have an adapter, has one, or is smaller than the rank.
    """
    size = size_of(layer)
    if isinstance(layer, Adapter):
        raise UserError(f"LoRA: the layer '{name}' has an adapter already; leave it out of targets")
    if size is None:
        raise UserError(
            f"LoRA: the layer '{name}' is a {type(layer).__name__}; adapters are for linear layers, so name these in "
            "targets"
        )
    inputs, outputs = size
    if rank > min(size):
        raise UserError(
            f"LoRA: rank={rank} is above the size of the layer '{name}' ({inputs} inputs, {outputs} outputs); "
            f"use {min(size)} or less"
        )
    kind: Any = type(layer)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    layer.__class__ = _adapted(kind)
    like: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
    layer.register_parameter(A, nn.Parameter(torch.empty(rank, inputs, **like)))
    layer.register_parameter(B, nn.Parameter(torch.empty(outputs, rank, **like)))
    layer.scaling = alpha / rank  # type: ignore[assignment]
    Adapter.reset_parameters(layer)  # type: ignore[arg-type]


def adapters_of(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers with adapters, by name."""
    return {name: cast("nn.Module", layer) for name, layer in network.named_modules() if isinstance(layer, Adapter)}


def _is_conv1d(layer: nn.Module) -> bool:
    return any(f"{cls.__module__}.{cls.__name__}" == "transformers.pytorch_utils.Conv1D" for cls in type(layer).__mro__)


@functools.cache
def _adapted(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive the class of a layer with an adapter, with the name and module of the layer's class."""
    return type(kind.__name__, (Adapter, kind), {"__module__": kind.__module__})
