"""What a client makes of its update before it sends it: clipping, and the largest entries alone."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped", "entries_kept", "largest_entries"]


def clipped(updates: Tensor, longest: float) -> Tensor:
    """Shorten updates that are longer than `longest` to that length; the others stay as they are.

    Args:
        updates: one a row, [k, width].
        longest: their greatest Euclidean length, above 0 (S in DP-FedAvg, arXiv 1710.06963, algorithm 1).

    Returns:
        A new [k, width].

    Examples:
        >>> clipped(torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]]), 2.0)
        tensor([[1.2000, 1.6000],
                [0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    lengths = torch.linalg.vector_norm(updates, dim=1, keepdim=True, dtype=torch.float64)
    return updates * (longest / lengths.clamp(min=longest)).to(updates.dtype)


def entries_kept(share: float, width: int) -> int:
    """Count the entries in a share of them: rounded, at least 1, and 0 of none.

    Args:
        share: 0 to 1.
        width: number of entries.

    Examples:
        >>> entries_kept(0.01, 1000), entries_kept(0.01, 10), entries_kept(0.5, 0)
        (10, 1, 0)
    """
    return min(width, max(1, round(share * width)))


def largest_entries(rows: Tensor, count: int) -> Tensor:
    """Return the `count` largest entries of each row by absolute value, of equals the first ones; zeros elsewhere.

    Args:
        rows: finite, [k, width].
        count: from 0 to the width.

    Returns:
        A new [k, width].

    Examples:
        >>> largest_entries(torch.tensor([[1.0, -3.0, 2.0], [1.0, -1.0, 1.0]]), 2)
        tensor([[ 0., -3.,  2.],
                [ 1., -1.,  0.]])
    """
    if not count:
        return torch.zeros_like(rows)
    sizes = rows.abs()
    least = sizes.topk(count, dim=1).values.min(dim=1, keepdim=True).values
    above, equal = sizes > least, sizes == least
    missing = count - above.sum(dim=1, keepdim=True)
    return rows.where(above | (equal & (equal.cumsum(dim=1) <= missing)), 0)
