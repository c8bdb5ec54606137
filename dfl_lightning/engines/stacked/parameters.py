"""Memory of a cohort's models during training: parameter by parameter, not client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Entry, Layout

LONG_ROW = 2**14
"""Columns from which on rows are copied one by one on a CPU."""

Read = Callable[[int, int], Tensor]
"""(start, stop) -> these columns of k models, [k, stop - start], in fresh memory; see `Bank.reader`."""


class Staging:
    """k models as one tensor [k, *shape] for each parameter and buffer of the network.

    A batched layer thus has its weights in one piece, and one optimizer step updates all clients. Weights of four
    dimensions (those of convolutions) are in channels-last memory; see `memory`.

    Args:
        layout: the columns of a row.
        read: reader of the models. Its results are used without a copy if their memory layout fits.
        into: memory to copy the models into, as the first k; default: fresh memory.

    Attributes:
        tensors: tensors by the name of the parameter or buffer, [k, *shape] each, with the network's own types.
    """

    def __init__(self, layout: Layout, read: Read, into: Staging | None = None) -> None:
        self.layout = layout
        self.tensors = {entry.name: _unpack(entry, read) for entry in layout.entries}
        if into is not None:
            self.tensors = {name: into.tensors[name][: len(t)].copy_(t) for name, t in self.tensors.items()}

    def parameters(self) -> list[Tensor]:
        """Return the stacked parameters, [k, *shape] each, in the network's order."""
        return [self.tensors[entry.name] for entry in self.layout.entries if not entry.is_buffer]

    def copy_into(self, target: Tensor, places: Tensor) -> None:
        """Write the models into rows of a matrix.

        Args:
            target: [rows, width].
            places: index of each model's row, long [k].
        """
        for entry in self.layout.entries:
            values = self.tensors[entry.name].reshape(len(places), -1).to(target.dtype)
            _write(target[:, entry.start : entry.stop], places, values)

    def finite(self) -> Tensor:
        """Return for each model whether it is free of NaN and infinity, bool [k]."""
        floating = (t.reshape(len(t), -1) for t in self.tensors.values() if t.is_floating_point() and t.numel())
        # Of torch's reductions these two are vectorised; they pass NaN on.
        extremes = [extreme for t in floating for extreme in (t.amin(1), t.amax(1))]
        return torch.stack(extremes).isfinite().all(0)


def unpack(layout: Layout, read: Read) -> list[Tensor]:
    """Read the parameters of k models, [k, *shape] each, into the memory layout of `Staging`.

    Args:
        layout: the columns of a row.
        read: reader of the models.
    """
    return [_unpack(entry, read) for entry in layout.entries if not entry.is_buffer]


def memory(tensor: Tensor) -> Tensor:
    """Permute a stacked tensor to the order of its memory; it is contiguous then, if it has the layout of `Staging`."""
    return tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor


def staged(tensor: Tensor) -> Tensor:
    """Bring a stacked tensor into the memory layout of `Staging`; copy it if it is 5-dimensional or not contiguous."""
    if tensor.dim() != 5:
        return tensor.contiguous()
    return memory(tensor).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)


def row_of(layout: Layout, tensors: Sequence[Tensor]) -> Tensor:
    """Convert stacked parameters to rows [k, width], with zeros for buffers.

    Args:
        layout: the columns of a row.
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
    """Write values [k, c] into the rows `places` of a tensor [rows, c].

    On a CPU long rows are copied one by one, which is faster than indexing.
    """
    if target.device.type != "cpu" or values.shape[1] <= LONG_ROW:
        target.index_copy_(0, places.to(target.device), values)
        return
    first = int(places[0])
    if torch.equal(places, torch.arange(first, first + len(places))):
        target[first : first + len(places)].copy_(values)
        return
    for place, value in zip(places.tolist(), values, strict=True):
        target[place].copy_(value)
