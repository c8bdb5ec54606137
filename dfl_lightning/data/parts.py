"""Inputs of several tensors, packed into one row of numbers for each sample.

Data sets, partitions and engines handle one tensor of inputs. Several tensors of a sample, or one of whole numbers, are
packed into a row; the engines take the row apart again where they call the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dfl_lightning.utils.errors import UserError

__all__ = ["Part", "Parts", "kind_of"]

LARGEST = 2**24
"""Largest absolute whole number that a row of float32 holds."""


@dataclass(frozen=True)
class Part:
    """One tensor of a sample's inputs.

    Args:
        name: keyword of the network's `forward`; or the tensor's number, from 0 on, among positional arguments.
        shape: shape of one sample's tensor.
        kind: `float`, `int` or `bool`: what the network gets, numbers of the run's precision, int64 or bool.
    """

    name: str | int
    shape: tuple[int, ...]
    kind: str

    @property
    def numbers(self) -> int:
        """Number of the tensor's entries."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        name = "the tensor" if isinstance(self.name, int) else self.name
        return f"{name} {self.kind} {list(self.shape)}"


@dataclass(frozen=True)
class Parts:
    """The tensors of a sample's inputs, in the order in which a row has their numbers.

    Args:
        each: the tensors; positional arguments come first.

    Examples:
        >>> parts = Parts.of({"ids": torch.tensor([5, 6, 7]), "mask": torch.tensor([True, True, False])})
        >>> row = parts.pack({"ids": torch.tensor([5, 6, 7]), "mask": torch.tensor([True, True, False])})
        >>> row
        tensor([5., 6., 7., 1., 1., 0.])
        >>> parts.arguments(row.unsqueeze(0))
        ([], {'ids': tensor([[5, 6, 7]]), 'mask': tensor([[ True,  True, False]])})
    """

    each: tuple[Part, ...]

    @classmethod
    def of(cls, inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Parts:
        """Describe the inputs of one sample: a tensor, a sequence of tensors, or tensors by name."""
        return cls(tuple(Part(name, tuple(tensor.shape), kind_of(tensor)) for name, tensor in _named(inputs)))

    @property
    def width(self) -> int:
        """Number of the entries of a row."""
        return sum(part.numbers for part in self.each)

    @property
    def takes_apart(self) -> bool:
        """True if there are several tensors, or tensors with names."""
        return len(self.each) > 1 or isinstance(self.each[0].name, str)

    def pack(self, inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:
        """Pack the inputs of one sample into a row, float32 or, if one of them is float64, float64: [width].

        Raises:
            UserError: a whole number is beyond 2^24, which a row cannot hold.
        """
        tensors = dict(_named(inputs))
        for part in self.each:
            tensor = tensors[part.name]
            if part.kind == "int" and tensor.numel() and int(tensor.abs().max()) > LARGEST:
                raise UserError(f"{part} holds a whole number beyond 2^24, which float32 does not have; count from 0")
        dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors.values()) else torch.float32
        return torch.cat([tensors[part.name].reshape(-1).to(dtype) for part in self.each])

    def arguments(self, rows: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Take rows [B, width] apart: positional arguments and keyword arguments, [B, ...] each."""
        start, args, kwargs = 0, [], {}
        for part in self.each:
            tensor = taken(rows, start, start + part.numbers, part.shape, part.kind)
            start += part.numbers
            if isinstance(part.name, str):
                kwargs[part.name] = tensor
            else:
                args.append(tensor)
        return args, kwargs

    def __str__(self) -> str:
        return ", ".join(map(str, self.each))


def kind_of(tensor: Tensor) -> str:
    """Return `float`, `int` or `bool` for the dtype of a tensor."""
    return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"


def taken(rows: Any, start: int, stop: int, shape: tuple[int, ...], kind: str) -> Any:
    """Take one part out of rows.

    Args:
        rows: [..., width]; while a network is traced, a proxy, for which the call becomes one node of the graph.
        start: first of the part's columns.
        stop: last of the part's columns + 1.
        shape: shape of the part.
        kind: see `Part`.

    Returns:
        [..., *shape].
    """
    if isinstance(rows, fx.Proxy):
        return rows.tracer.create_proxy("call_function", taken, (rows, start, stop, shape, kind), {})
    part = rows[..., start:stop].reshape(*rows.shape[:-1], *shape)
    return part.round().long() if kind == "int" else part != 0 if kind == "bool" else part


def _named(inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> list[tuple[str | int, Tensor]]:
    if isinstance(inputs, Tensor):
        return [(0, inputs)]
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    return list(enumerate(inputs))
