"""The highest values of segments of different lengths."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**22
"""Largest number of entries of a matrix of segments, which bounds the memory of `mark_highest`."""


def mark_highest(values: Tensor, starts: Tensor, limits: Tensor) -> Tensor:
    """Mark the highest values of each segment, bool [E].

    A NaN is never marked. Of equal values, the first ones are.

    Args:
        values: values of the segments, one segment after the other, [E].
        starts: index of each segment's first value, long [n + 1]; the last entry is E.
        limits: number of values to mark in each segment, long [n]; a segment that has fewer keeps all.

    Examples:
        >>> mark_highest(torch.tensor([3.0, 5.0, 5.0, 1.0]), torch.tensor([0, 3, 4]), torch.tensor([1, 2])).tolist()
        [False, True, False, True]
    """
    known, counts = ~values.isnan(), starts.diff()
    # A known value of -infinity must still be above the padding of the blocks.
    values = values.double().clamp(min=torch.finfo(torch.float64).min).masked_fill(~known, -torch.inf)
    marked = known & (limits >= counts).repeat_interleave(counts)
    for indices, inside, segments in _blocks(starts, counts, (limits > 0) & (limits < counts)):
        block = values[indices].masked_fill_(~inside, -torch.inf)
        limit = limits[segments]
        highest = block.topk(int(limit.max()), dim=1).values
        last = highest.gather(1, (limit - 1)[:, None])
        above, equal = block > last, (block == last) & inside
        chosen = above | (equal & (equal.cumsum(1) <= (limit - above.sum(1))[:, None]))
        marked[indices[chosen]] = True
    return marked & known


def _blocks(starts: Tensor, counts: Tensor, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the wanted segments, bool [n], as matrices of segments with similar lengths.

    Yields:
        Indices of the values, long [r, w]; a mask that is False for padding, bool [r, w]; the segments, long [r].
    """
    widths = (2 ** counts.clamp(min=1).double().log2().ceil()).long()
    for width in widths[wanted].unique().tolist():
        segments = torch.nonzero((widths == width) & wanted).squeeze(1)
        for some in segments.split(max(1, BLOCK // width)):
            count = counts[some]
            offsets = torch.arange(int(count.max()))
            inside = offsets < count[:, None]
            yield (starts[some][:, None] + offsets).clamp_(max=int(starts[-1]) - 1), inside, some
