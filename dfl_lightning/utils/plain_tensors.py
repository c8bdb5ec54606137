"""Checks that tensors are dense and real and have values, so that a row of a bank can contain them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfl_lightning.utils.errors import UserError


def unusual(tensor: Tensor) -> str:
    """Return an adjective for a tensor that a row cannot contain, for example `sparse`; empty if a row can.

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
    """Raise if a parameter or buffer is of a kind that a row cannot contain.

    Raises:
        UserError: a parameter or buffer is complex, sparse, quantized, nested or without values, or a parameter has
            fewer than 32 bits.
    """
    for kind, tensors in (("parameter", network.named_parameters()), ("buffer", network.named_buffers())):
        for name, tensor in tensors:
            if adjective := unusual(tensor):
                raise UserError(
                    f"model.network {type(network).__name__}: {kind} '{name}' is {adjective}; models are exchanged as "
                    "dense real numbers, so keep it as such (a complex one as torch.view_as_real has it)"
                )
            if kind == "parameter" and tensor.is_floating_point() and tensor.itemsize < 4:
                short = str(tensor.dtype).removeprefix("torch.")
                raise UserError(
                    f"model.network {type(network).__name__}: parameter '{name}' is {short}; models are kept in "
                    "float32, so call .float() on the network (trainer.precision: bf16-mixed computes in bfloat16)"
                )
