"""Convolutions of k clients: one with k times the groups, or columns of patches and a batched product.

On a CPU groups are always faster. A GPU's grouped kernels are fast for some shapes and slow for others; so
`autotune.choose_unfolded` times each layer both ways there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.kernels import BatchedLinear, as_autocast
from dfl_lightning.engines.stacked.layers.passes import Pass, Rule
from dfl_lightning.engines.stacked.layers.patches import PatchConvolution, Patches
from dfl_lightning.engines.stacked.parameters import memory

AWKWARD_CHANNELS = 3
"""Number of input channels of each group for which oneDNN has no AVX2 kernel for the weights' gradient; its fallback
takes three times as long as four channels."""


def flat(tensor: Tensor | None) -> Tensor | None:
    """View [k, C, ...] as [k * C, ...], the clients' channels side by side, in the same memory format."""
    if tensor is None or tensor.dim() != 5:
        return None if tensor is None else tensor.flatten(0, 1)
    # Flattening in the order of memory keeps the format; with dimensions of size 1, strides alone are ambiguous.
    return memory(tensor).flatten(0, 1).permute(0, 3, 1, 2)


def batched_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer of each of k clients, [k, N, O].

    Args:
        rows: inputs [k, N, I].
        weight: [k, O, I].
        bias: [k, O] or None.
    """
    result: Tensor = BatchedLinear.apply(*as_autocast((rows, weight, bias)))
    return result


def convolution(function: Callable[..., Tensor]) -> Rule:
    """Return the rule for a kind of convolution, for example `F.conv2d`."""

    def rule(layer: nn.Conv2d, name: str, now: Pass, x: Activation) -> Activation:
        """Compute one convolution with k times the groups, or by patches if the pass unfolds the layer."""
        if name in (now.unfolded or ()):
            return unfolded(layer, name, now, x)
        weight, bias = now.weight(name), flat(now.of(name, "bias"))
        clients = len(weight)
        if layer.groups > 1:
            x = x.spread(clients)
        groups = x.clients * layer.groups  # If clients share their images, one group has the outputs of all.
        image, kernel = _with_a_fourth(x, weight) if _is_awkward(layer, weight) else (x.side_by_side(), flat(weight))
        if layer.padding_mode != "zeros":
            image = F.pad(image, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            return Activation(function(image, kernel, bias, layer.stride, 0, layer.dilation, groups), clients, True)
        out = function(image, kernel, bias, layer.stride, layer.padding, layer.dilation, groups)
        return Activation(out, clients, channels=True)

    return rule


def _is_awkward(layer: nn.Conv2d, weight: Tensor) -> bool:
    """Return True if the weights' gradient would use the slow fallback; see `AWKWARD_CHANNELS`."""
    grouped = type(layer) is nn.Conv2d and layer.in_channels == AWKWARD_CHANNELS and layer.groups == 1 < len(weight)
    wanted = weight.requires_grad and torch.is_grad_enabled()
    return grouped and wanted and weight.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def _with_a_fourth(x: Activation, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Add a fourth channel of zeros to images and weight, and return both in the layout for groups."""
    image = F.pad(x.leading().permute(1, 3, 4, 0, 2), (0, 1))  # [B, H, W, k, 4]
    kernel = F.pad(memory(weight), (0, 1))  # [k, O, kh, kw, 4]
    return image.flatten(3).permute(0, 3, 1, 2), kernel.flatten(0, 1).permute(0, 3, 1, 2)


def can_unfold(layer: nn.Module) -> bool:
    """Return True if the layer can be computed by `unfolded`."""
    return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"


def unfolded(layer: nn.Conv2d, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a convolution by patches as columns (im2col) and one batched product."""
    weight, bias = now.weight(name), now.of(name, "bias")
    images = x.spread(len(weight)).leading()
    padding: Any = layer.padding
    if isinstance(padding, str):  # The padding `same` may be larger on one side.
        images, padding = F.pad(images, layer._reversed_padding_repeated_twice), 0
    images, weight, bias = as_autocast((images, weight, bias))
    patches = _patches(layer, images.shape, padding)
    return Activation(PatchConvolution.apply(images, weight, bias, patches), len(weight), channels=True)


def numbers_of_patches(layer: nn.Conv2d, shape: Sequence[int]) -> int:
    """Count the entries in the patches of one client's images.

    Args:
        layer: the convolution.
        shape: shape of the images, [B, C, H, W].
    """
    if not isinstance(layer.padding, str):
        return _patches(layer, (1, *shape), layer.padding).numbers
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    return _patches(layer, (1, *shape[:2], shape[2] + top + bottom, shape[3] + left + right), 0).numbers


def _patches(layer: nn.Conv2d, shape: Sequence[int], padding: Any) -> Patches:
    kernel, stride, dilation = (_pair(size) for size in (layer.kernel_size, layer.stride, layer.dilation))
    return Patches(shape, kernel, stride, _pair(padding), dilation)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
