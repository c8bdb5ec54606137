"""Functions that draw random numbers, for k clients at once, with masks from each client's own key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.engines.calling.own_draws import OWN, OwnDraws
from dfl_lightning.engines.dropout_layers import MaskSource
from dfl_lightning.engines.stacked.layers.activation import Activation, one_by_one
from dfl_lightning.engines.stacked.layers.passes import Pass


def drawn(function: Callable[..., Any], now: Pass, *args: Any, **kwargs: Any) -> Any:
    """Compute a function of `own_draws.OWN` in a training pass; the clients' samples follow each other in one tensor.

    Args:
        function: the function.
        now: the pass, with the clients' keys.
        args: arguments of the function; the first dimension of one client's tensors is that of samples.
        kwargs: further arguments by name.
    """
    values = (*args, *kwargs.values())
    tensors = [value for value in values if isinstance(value, Activation)]
    wants_vmap = function not in _OF_ONE_TENSOR and function is not F.scaled_dot_product_attention
    alike = len({value.clients for value in tensors}) == 1 and all(len(value.shape) > 1 for value in tensors)
    alike = alike and len({value.shape[0] for value in tensors}) == 1  # A mask [T, S] of each client has no samples.
    if wants_vmap or not alike or any(isinstance(value, Tensor) and value.dim() > 2 for value in values):
        return drawn_one_by_one(function, now, MaskSource(), *args, **kwargs)
    source, clients = MaskSource(), tensors[0].clients
    assert now.masks is not None
    source.begin(now.masks, now.dropped)

    def flat(value: Any) -> Any:
        return value.leading().flatten(0, 1) if isinstance(value, Activation) else value

    out = OWN[function](source, function, *map(flat, args), **{name: flat(value) for name, value in kwargs.items()})
    now.dropped = source.call
    return Activation(out.unflatten(0, (clients, -1)), clients)


def drawn_one_by_one(function: Callable[..., Any], now: Pass, source: MaskSource, *args: Any, **kwargs: Any) -> Any:
    """Compute a function for each client by `torch.vmap` in a training pass; it draws from the client's own key.

    Args:
        function: function of one client's tensors.
        now: the pass, with the clients' keys.
        source: the source of the dropout layers that the function calls, or a new one.
        args: arguments of the function.
        kwargs: further arguments by name.
    """
    assert now.masks is not None
    first = now.dropped

    def call(key: Tensor, *inner: Any, **more: Any) -> Any:
        source.begin(key, first)
        with OwnDraws(source, explicit=True):
            return function(*inner, **more)

    results = one_by_one(call, Activation(now.masks, len(now.masks)), *args, **kwargs)
    now.dropped = source.call
    return results


_OF_ONE_TENSOR = (F.dropout, F.dropout2d, F.alpha_dropout)
"""Functions of one tensor with samples as its first dimension, whatever its other dimensions are."""
