"""Where the models of a cohort lie while they are worked on: parameter by parameter, not client by client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Entry, Layout


class Staging:
    """k models as one tensor [k, *shape] for each parameter and buffer of the plain network.

    A batched layer then finds its weights in one piece, and one optimizer step updates all clients. Tensors of four
    dimensions (a convolution's weights) lie in channels-last memory, as `memory` returns them.

    Args:
        layout: columns of a row.
        rows: the models, [k, width]; copied.
        into: where to put them, in its first k places; default: fresh memory.

    Attributes:
        tensors: by name, [k, *shape] each, with the network's own types.
    """

    def __init__(self, layout: Layout, rows: Tensor, into: Staging | None = None) -> None:
        self.layout = layout
        self.tensors = {entry.name: _unpack(entry, rows) for entry in layout.entries}
        if into is not None:
            self.tensors = {name: into.tensors[name][: len(rows)].copy_(t) for name, t in self.tensors.items()}

    def parameters(self) -> list[Tensor]:
        """In the network's order."""
        return [self.tensors[entry.name] for entry in self.layout.entries if not entry.is_buffer]

    def copy_into(self, target: Tensor, places: Tensor) -> None:
        """Write the models into rows `places` of `target` [rows, width]."""
        places = places.to(target.device)
        for entry in self.layout.entries:
            values = self.tensors[entry.name].reshape(len(places), -1).to(target.dtype)
            target[:, entry.start : entry.stop].index_copy_(0, places, values)

    def finite(self) -> Tensor:
        """Which models are free of NaN and infinity, bool [k]."""
        floating = (t for t in self.tensors.values() if t.is_floating_point() and t.numel())
        largest = [torch.linalg.vector_norm(t.reshape(len(t), -1), float("inf"), dim=1) for t in floating]
        return torch.stack(largest).isfinite().all(0)


def unpack(layout: Layout, rows: Tensor) -> list[Tensor]:
    """The parameters of rows [k, width], [k, *shape] each, in the memory of `Staging`; copies."""
    return [_unpack(entry, rows) for entry in layout.entries if not entry.is_buffer]


def memory(tensor: Tensor) -> Tensor:
    """A stacked tensor in the order in which its numbers lie: contiguous, if it is laid out as `Staging` does."""
    return tensor.permute(0, 1, 3, 4, 2) if tensor.dim() == 5 else tensor


def row_of(layout: Layout, tensors: Sequence[Tensor]) -> Tensor:
    """Stacked parameters, [k, *shape] each, as rows [k, width] with zeros in the place of buffers."""
    first = tensors[0]
    rows = first.new_zeros(len(first), layout.width)
    entries = [entry for entry in layout.entries if not entry.is_buffer]
    for entry, tensor in zip(entries, tensors, strict=True):
        rows[:, entry.start : entry.stop] = tensor.reshape(len(first), -1)
    return rows


def _unpack(entry: Entry, rows: Tensor) -> Tensor:
    part = rows[:, entry.start : entry.stop].reshape(len(rows), *entry.shape)
    if not entry.dtype.is_floating_point:
        return part.round().to(entry.dtype)
    if part.dim() == 5:
        return part.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)
    return part.clone(memory_format=torch.contiguous_format)
