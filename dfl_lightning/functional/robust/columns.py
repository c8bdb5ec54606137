"""Robust averages of each column by itself (Yin et al., ICML 2018, arXiv 1803.01498).

Steps of a receiver if some senders may be adversaries, and the code of each:

1. it receives the models of the senders that it selected                       (the selection, on_select)
2. each column of the rows is sorted                                            (`_ordered`)
3. its model becomes the median of each column (algorithm 1, option I)          (`column_medians`; `Median`)
   or the mean without a share of the largest and smallest (option II)          (`trimmed_means`; `TrimmedMean`)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["column_medians", "trimmed_means"]

FEW = 128
"""Largest number of rows for which comparing pairs of whole rows is faster than sorting each column."""


def column_medians(rows: Tensor) -> Tensor:
    """Compute the median of each column, the mean of the middle two for even numbers (Yin et al. 2018, definition 1).

    Args:
        rows: received models, [..., received, columns], one row or more.

    Returns:
        Medians, [..., columns].

    Examples:
        >>> import torch
        >>> column_medians(torch.tensor([[1.0, 5.0], [2.0, -9.0], [100.0, 6.0]]))
        tensor([2., 5.])
        >>> column_medians(torch.tensor([[1.0], [2.0], [4.0], [100.0]]))
        tensor([3.])
    """
    ordered = _ordered(rows)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if len(ordered) % 2 else low + (high - low) / 2


def trimmed_means(rows: Tensor, trim: float) -> Tensor:
    """Compute the mean of each column without a share of its lowest and highest entries (same paper, definition 2).

    Args:
        rows: received models, [..., received, columns], one row or more.
        trim: share of the rows that is left out at each end, 0 or more and below 0.5; rounded down to whole rows.

    Returns:
        Means, [..., columns].

    Examples:
        >>> import torch
        >>> trimmed_means(torch.tensor([[1.0], [2.0], [4.0], [100.0]]), 0.25)
        tensor([3.])
        >>> trimmed_means(torch.tensor([[1.0], [3.0]]), 0.25)
        tensor([2.])
    """
    count = rows.shape[-2]
    left_out = int(trim * count)
    if not left_out:
        return rows.mean(dim=-2)
    kept = _ordered(rows)[left_out : count - left_out]
    return functools.reduce(torch.add, kept) / len(kept)


def _ordered(rows: Tensor) -> Sequence[Tensor]:
    """Sort each column in ascending order, and return the sorted rows, [..., columns] each."""
    count = rows.shape[-2]
    if count > FEW:
        return rows.sort(dim=-2).values.unbind(-2)
    ordered = list(rows.unbind(-2))
    for a, b in _comparisons(count):
        ordered[a], ordered[b] = torch.minimum(ordered[a], ordered[b]), torch.maximum(ordered[a], ordered[b])
    return ordered


@functools.cache
def _comparisons(count: int) -> list[tuple[int, int]]:
    """List the pairs of positions that a sorting network compares in turn: Batcher's odd-even merge sort (1968)."""
    pairs = []
    merged = 1
    while merged < count:
        apart = merged
        while apart:
            for first in range(apart % merged, count - apart, 2 * apart):
                for position in range(first, min(first + apart, count - apart)):
                    if position // (2 * merged) == (position + apart) // (2 * merged):
                        pairs.append((position, position + apart))
            apart //= 2
        merged *= 2
    return pairs
