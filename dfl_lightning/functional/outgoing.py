"""Changes of an update before a client sends it: clipping, sparsification, quantization.

- DP-FedAvg (arXiv 1710.06963): u becomes u min(1, S / |u|), then noise is added                   (`clipped`)
- sparsified SGD (arXiv 1809.07599): the k largest entries of u are sent, the rest is kept         (`largest_entries`)
- QSGD (arXiv 1610.02132): with s = 2^(bits-1) - 1 and a = s |u_i| / |u| of a bucket, sent is |u| sign(u_i) / s times
  floor(a), or floor(a) + 1 with probability a - floor(a)                                          (`quantized`)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped", "entries_kept", "largest_entries", "quantized", "quantized_bytes"]


def clipped(updates: Tensor, longest: float) -> Tensor:
    """Shorten updates that are longer than `longest` to that length; the others stay as they are.

    Args:
        updates: one update per row, [k, width].
        longest: greatest Euclidean length, above 0 (S in DP-FedAvg, arXiv 1710.06963, algorithm 1).

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
    """Count the entries that sparsification keeps: a share of them, rounded, at least 1 unless `width` is 0.

    Args:
        share: share of the entries, 0 to 1.
        width: number of entries.

    Examples:
        >>> entries_kept(0.01, 1000), entries_kept(0.01, 10), entries_kept(0.5, 0)
        (10, 1, 0)
    """
    return min(width, max(1, round(share * width)))


def largest_entries(rows: Tensor, count: int) -> Tensor:
    """Keep the `count` largest entries of each row by absolute value, the first ones among equals; set others to 0.

    Args:
        rows: finite numbers, [k, width].
        count: number of entries to keep, from 0 to the width.

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
    least = sizes.topk(count, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    kept = sizes >= least
    ties = torch.nonzero(kept.sum(dim=1, dtype=torch.int32) > count).squeeze(1)
    if len(ties):
        equal = sizes[ties] == least[ties]
        missing = count - (kept[ties] & ~equal).sum(dim=1, keepdim=True)
        kept[ties] &= ~equal | (equal.cumsum(dim=1) <= missing)
    return rows.where(kept, 0)


def quantized(rows: Tensor, draws: Tensor, bits: int, bucket: int) -> Tensor:
    """Quantise entries at random to multiples of their bucket's length divided by s = 2^(bits-1) - 1, without bias.

    This is Q_s of QSGD (arXiv 1610.02132, section 3.1): with a = s |v| / length, the level is floor(a), or floor(a) + 1
    with probability a - floor(a).

    Args:
        rows: finite numbers, [k, width].
        draws: uniform random numbers from 0 to 1, [k, width].
        bits: bits of an entry, its sign included, at least 2.
        bucket: number of entries of a row that share a length; the last bucket of a row may have fewer.

    Returns:
        A new [k, width].

    Examples:
        >>> quantized(torch.tensor([[3.0, -4.0]]), torch.tensor([[0.5, 0.9]]), bits=2, bucket=2)
        tensor([[5., -0.]])
    """
    levels, (count, width) = 2 ** (bits - 1) - 1, rows.shape
    missing = -width % bucket
    parts = torch.nn.functional.pad(rows, (0, missing)).view(count, -1, bucket)
    lengths = torch.linalg.vector_norm(parts, dim=2, keepdim=True, dtype=torch.float64).to(rows.dtype)
    whole = torch.where(lengths > 0, lengths, 1.0)
    scaled = parts.abs().div_(whole).mul_(levels).clamp_(max=levels)
    level = scaled.floor()
    up = draws < scaled.sub_(level).view(count, -1)[:, :width]
    level.view(count, -1)[:, :width] += up
    return parts.sign().mul_(level).mul_(lengths / levels).view(count, -1)[:, :width]


def quantized_bytes(width: int, bits: int, bucket: int) -> int:
    """Count the bytes of a quantized row: the bits of its entries, and four bytes for each bucket's length.

    Args:
        width: number of entries.
        bits: bits of an entry.
        bucket: number of entries that share a length.

    Examples:
        >>> quantized_bytes(1000, 8, 512)
        1008
    """
    return -(-width * bits // 8) + 4 * -(-width // bucket)
