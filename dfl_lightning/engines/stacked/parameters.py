"""Where the models of a cohort lie while they are worked on: parameter by parameter, not client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Entry, Layout

Read = Callable[[int, int], Tensor]
"""Columns [start, stop) of k models, [k, stop - start]; memory of its own, see `Bank.reader`."""


class Staging:
    """k models as one tensor [k, *shape] for each parameter and buffer of the plain network.

    A batched layer then finds its weights in one piece, and one optimizer step updates all clients. Tensors of four
    dimensions (a convolution's weights) lie in channels-last memory, as `memory` returns them.

    Args:
        layout: columns of a row.
        read: the models. What it returns is kept where it lies well already, so that a model is copied once.
        into: where to put them, in its first k places; default: fresh memory.

    Attributes:
        tensors: by name, [k, *shape] each, with the network's own types.
    """

    def __init__(self, layout: Layout, read: Read, into: Staging | None = None) -> None:
        self.layout = layout
        self.tensors = {entry.name: _unpack(entry, read) for entry in layout.entries}
        if into is not None:
            self.tensors = {name: into.tensors[name][: len(t)].copy_(t) for name, t in self.tensors.items()}

    def parameters(self) -> list[Tensor]:
        """In the network's order."""
        return [self.tensors[entry.name] for entry in self.layout.entries if not entry.is_buffer]

    def copy_into(self, target: Tensor, places: Tensor) -> None:
        """Write the models into rows of a matrix.

        Args:
            target: [rows, width].
            places: the row of each model, long [k].
        """
        for entry in self.layout.entries:
            values = self.tensors[entry.name].reshape(len(places), -1).to(target.dtype)
            _write(target[:, entry.start : entry.stop], places, values)

    def finite(self) -> Tensor:
        """Which models are free of NaN and infinity, bool [k]."""
        floating = (t.reshape(len(t), -1) for t in self.tensors.values() if t.is_floating_point() and t.numel())
        # Of torch's reductions these two are vectorised; they pass NaN on.
        extremes = [extreme for t in floating for extreme in (t.amin(1), t.amax(1))]
        return torch.stack(extremes).isfinite().all(0)


def unpack(layout: Layout, read: Read) -> list[Tensor]:
    """The parameters of k models, [k, *shape] each, in the memory layout of `Staging`.

    Args:
        layout: columns of a row.
        read: the models.
    """
    return [_unpack(entry, read) for entry in layout.entries if not entry.is_buffer]


def memory(tensor: Tensor) -> Tensor:
    """A stacked tensor in the order in which its numbers lie: contiguous, if it is laid out as `Staging` does."""
    return tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor


def staged(tensor: Tensor) -> Tensor:
    """A stacked tensor in the memory of `Staging`; a copy where it has five dimensions or is not contiguous."""
    if tensor.dim() != 5:
        return tensor.contiguous()
    return memory(tensor).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)


def row_of(layout: Layout, tensors: Sequence[Tensor]) -> Tensor:
    """Stacked parameters as rows [k, width], with zeros in the place of buffers.

    Args:
        layout: columns of a row.
        tensors: parameters in the network's order, [k, *shape] each.
    """
    first = tensors[0]
    rows = first.new_zeros(len(first), layout.width)
    entries = [entry for entry in layout.entries if not entry.is_buffer]
    for entry, tensor in zip(entries, tensors, strict=True):
        rows[:, entry.start : entry.stop] = tensor.reshape(len(first), -1)
    return rows


def _unpack(entry: Entry, read: Read) -> Tensor:
    part = read(entry.start, entry.stop)
    part = part.reshape(len(part), *entry.shape)
    if not entry.dtype.is_floating_point:
        return part.round().to(entry.dtype)
    return staged(part)


def _write(target: Tensor, places: Tensor, values: Tensor) -> None:
    """Values [k, c] into rows `places` of columns [rows, c]; on a CPU one by one, twice as fast as by index."""
    if target.device.type != "cpu":
        target.index_copy_(0, places.to(target.device), values)
        return
    first = int(places[0])
    if torch.equal(places, torch.arange(first, first + len(places))):
        target[first : first + len(places)].copy_(values)
        return
    for place, value in zip(places.tolist(), values, strict=True):
        target[place].copy_(value)
