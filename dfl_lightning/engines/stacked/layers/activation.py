"""Values between the layers of a stacked network: one tensor with the activations of k clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Activation:
    """Tensors of k clients, each [B, ...] in the network for one client, as one tensor.

    There are two layouts, and each layer requests the one that it needs:

    - *leading*: [k, B, ...], a client after the other. Linear layers multiply it in one batched product.
    - *channels*: [B, k * C, ...], the clients' channels side by side, in channels-last memory. A convolution, a norm or
      a pooling of k clients is then a single one with k times as many groups or channels.

    A parameter that the network uses directly is an activation, too, [k, ...] without a batch. A value that all clients
    share, such as images on which all models are evaluated, is an activation of one client, until it is `spread`.

    Args:
        tensor: the numbers.
        clients: k.
        channels: True for the layout *channels*.
    """

    __slots__ = ("channels", "clients", "tensor")

    def __init__(self, tensor: Tensor, clients: int, channels: bool = False) -> None:
        self.tensor, self.clients, self.channels = tensor, clients, channels

    @property
    def shape(self) -> torch.Size:
        """Shape of one client's tensor, as in the network for one client."""
        shape = self.tensor.shape
        if not self.channels:
            return shape[1:]
        return torch.Size((shape[0], shape[1] // self.clients, *shape[2:]))

    def leading(self) -> Tensor:
        """Return the numbers as [k, B, ...], as a view if possible."""
        if not self.channels:
            return self.tensor
        return self.tensor.unflatten(1, (self.clients, -1)).transpose(0, 1)

    def side_by_side(self) -> Tensor:
        """Return the numbers as [B, k * C, ...]; images are in channels-last memory."""
        if self.channels:
            return self.tensor
        clients, batch, channels, *rest = self.tensor.shape
        if len(rest) != 2:
            return self.tensor.transpose(0, 1).reshape(batch, clients * channels, *rest)
        last = self.tensor.permute(1, 3, 4, 0, 2)  # [B, H, W, k, C], from which one copy makes channels-last memory.
        return last.reshape(batch, *rest, clients * channels).contiguous().permute(0, 3, 1, 2)

    def spread(self, clients: int) -> Activation:
        """Repeat shared numbers for each client, as a view; return the activation itself if it has so many clients."""
        if self.clients == clients:
            return self
        return Activation(self.leading().expand(clients, *self.shape), clients)

    def like(self, tensor: Tensor) -> Activation:
        """Return an activation with other numbers in the same layout."""
        return Activation(tensor, self.clients, self.channels)


def one_by_one(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply a function to each client's own tensors by `torch.vmap`.

    Args:
        function: function of one client's tensors, with operations that vmap supports.
        args: arguments; each client's tensor replaces activations, also inside of containers.
        kwargs: keyword arguments, treated as `args`.

    Returns:
        The results, with activations instead of tensors.
    """
    leaves, form = tree_flatten((args, kwargs), is_leaf=_is_activation)
    indices = [index for index, leaf in enumerate(leaves) if _is_activation(leaf)]
    clients = leaves[indices[0]].clients

    constants: list[Any] = []  # Results other than tensors, such as None, which vmap does not return.

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(indices, tensors, strict=True):
            filled[index] = tensor
        inner_args, inner_kwargs = tree_unflatten(filled, form)
        result = function(*inner_args, **inner_kwargs)
        if isinstance(result, Tensor):
            return result
        found, structure = tree_flatten(result)
        constants[:] = [structure, [None if isinstance(value, Tensor) else (value,) for value in found]]
        return tuple(value for value in found if isinstance(value, Tensor))

    results = torch.vmap(call)(*(leaves[index].leading() for index in indices))
    if not constants:
        return Activation(results, clients)
    stacked = (Activation(tensor, clients) for tensor in results)
    structure, places = constants
    return tree_unflatten([next(stacked) if place is None else place[0] for place in places], structure)


def holds_activation(value: Any) -> bool:
    """Return True if nested lists, tuples and dicts contain an activation."""
    if isinstance(value, tuple) and any(map(_is_activation, value)):
        return True  # This avoids `tree_flatten`, which takes as long as a small layer.
    return any(_is_activation(leaf) for leaf in tree_flatten(value, is_leaf=_is_activation)[0])


def _is_activation(value: Any) -> bool:
    return isinstance(value, Activation)
