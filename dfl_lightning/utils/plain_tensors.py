"""Which tensors a row can hold: dense, real numbers that are there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfl_lightning.utils.errors import UserError


def unusual(tensor: Tensor) -> str:
    """What keeps a tensor from being numbers in a row, as an adjective; empty where nothing does.

    Examples:
        >>> unusual(torch.zeros(2, dtype=torch.complex64)), unusual(torch.zeros(2))
        ('complex', '')
    """
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "without numbers (on the device 'meta')"
    if tensor.layout != torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantized"
    return "complex" if tensor.is_complex() else ""


def refuse_unusual(network: nn.Module) -> None:
    """Refuse parameters and buffers that a row cannot hold, which would lose a part of them or fail later.

    Raises:
        UserError: one is complex, sparse, quantized or without numbers.
    """
    for what, tensors in (("parameter", network.named_parameters()), ("buffer", network.named_buffers())):
        for name, tensor in tensors:
            if why := unusual(tensor):
                raise UserError(
                    f"model.network {type(network).__name__}: {what} '{name}' is {why}; models are exchanged as dense "
                    "real numbers, so keep it as such (a complex one as torch.view_as_real has it)"
                )
