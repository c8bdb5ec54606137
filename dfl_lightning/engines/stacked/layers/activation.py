"""What flows through a stacked network: one tensor that stands for the activations of k clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


class Activation:
    """The tensors of k clients, each [B, ...] in the plain network, as one.

    There are two layouts, and each layer asks for the one it works on:

    - *leading*: [k, B, ...], a client after the other. Linear layers multiply it in one batched product.
    - *channels*: [B, k * C, ...], the clients' channels side by side, in the memory format of channels last. A
      convolution, a norm or a pooling of k clients is then a single one with k times as many groups or channels.

    A parameter that the network uses by itself is an activation too, [k, ...] without a batch. What is the same for all
    clients, such as images that all of them are tried on, is the activation of one, until it is `spread`.

    Args:
        tensor: the numbers.
        clients: k.
        channels: whether the layout is *channels*.
    """

    __slots__ = ("channels", "clients", "tensor")

    def __init__(self, tensor: Tensor, clients: int, channels: bool = False) -> None:
        self.tensor, self.clients, self.channels = tensor, clients, channels

    @property
    def shape(self) -> torch.Size:
        """The shape that one client's tensor has in the plain network."""
        shape = self.tensor.shape
        if not self.channels:
            return shape[1:]
        return torch.Size((shape[0], shape[1] // self.clients, *shape[2:]))

    def leading(self) -> Tensor:
        """The numbers as [k, B, ...]; a view where possible."""
        if not self.channels:
            return self.tensor
        return self.tensor.unflatten(1, (self.clients, -1)).transpose(0, 1)

    def side_by_side(self) -> Tensor:
        """The numbers as [B, k * C, ...]; images in channels-last memory."""
        if self.channels:
            return self.tensor
        clients, batch, channels, *rest = self.tensor.shape
        if len(rest) != 2:
            return self.tensor.transpose(0, 1).reshape(batch, clients * channels, *rest)
        last = self.tensor.permute(1, 3, 4, 0, 2)  # [B, H, W, k, C]: one copy makes channels last of it
        return last.reshape(batch, *rest, clients * channels).contiguous().permute(0, 3, 1, 2)

    def spread(self, clients: int) -> Activation:
        """The same numbers for each of so many clients, as a view; itself, if it is theirs already."""
        if self.clients == clients:
            return self
        return Activation(self.leading().expand(clients, *self.shape), clients)

    def like(self, tensor: Tensor) -> Activation:
        """Other numbers in the same layout."""
        return Activation(tensor, self.clients, self.channels)


def one_by_one(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply a function to each client's own tensors by `torch.vmap`.

    Args:
        function: of plain tensors, with operations that vmap supports.
        args: its arguments; activations among them, in containers too, are those of each client.
        kwargs: the same.

    Returns:
        The results, tensors of clients as activations.
    """
    leaves, form = tree_flatten((args, kwargs), is_leaf=_is_activation)
    places = [place for place, leaf in enumerate(leaves) if _is_activation(leaf)]
    clients = leaves[places[0]].clients

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        inner_args, inner_kwargs = tree_unflatten(filled, form)
        return function(*inner_args, **inner_kwargs)

    results = torch.vmap(call)(*(leaves[place].leading() for place in places))
    return tree_map(lambda tensor: Activation(tensor, clients), results)


def holds_activation(value: Any) -> bool:
    """Whether an activation is somewhere in nested lists, tuples and dicts."""
    if isinstance(value, tuple) and any(map(_is_activation, value)):
        return True  # without a tree, which takes as long as a small layer
    return any(_is_activation(leaf) for leaf in tree_flatten(value, is_leaf=_is_activation)[0])


def _is_activation(value: Any) -> bool:
    return isinstance(value, Activation)
