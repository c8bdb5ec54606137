"""Averages that few wrong rows cannot move far, column by column."""

from __future__ import annotations

from torch import Tensor

__all__ = ["column_medians", "trimmed_means"]


def column_medians(rows: Tensor) -> Tensor:
    """The median of each column, of an even number the middle two's mean (Yin et al. 2018, arXiv 1803.01498, def. 1).

    Args:
        rows: [..., received, columns], one row or more.

    Returns:
        [..., columns].

    Example:
        >>> import torch
        >>> column_medians(torch.tensor([[1.0, 5.0], [2.0, -9.0], [100.0, 6.0]]))
        tensor([2., 5.])
        >>> column_medians(torch.tensor([[1.0], [2.0], [4.0], [100.0]]))
        tensor([3.])
    """
    count = rows.shape[-2]
    ordered = rows.sort(dim=-2).values
    low, high = ordered.select(-2, (count - 1) // 2), ordered.select(-2, count // 2)
    return low if count % 2 else low + (high - low) / 2


def trimmed_means(rows: Tensor, trim: float) -> Tensor:
    """The mean of each column without a share of its lowest and of its highest entries (the same paper, definition 2).

    Args:
        rows: [..., received, columns], one row or more.
        trim: share that is left out at each end, 0 or more and below 0.5; rounded down to whole rows.

    Returns:
        [..., columns].

    Example:
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
    return rows.sort(dim=-2).values.narrow(-2, left_out, count - 2 * left_out).mean(dim=-2)
