"""`compare` and `mix` on bare row sets: the two verbs that need no data and no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.threads import workers
from dfl_lightning.functional import centred_cosines, cosines_from_gram, distances_from_gram

BLOCK_BYTES = 32 * 2**20
"""How much of a row set a product holds at once, besides the sets themselves."""


@dataclass(frozen=True)
class Comparison:
    """Similarities of rows; NaN outside the compared pairs.

    Args:
        cosines: float64 [m, m].
        distances: Euclidean, float64 [m, m].
    """

    cosines: Tensor
    distances: Tensor


def block_width(rows: int, itemsize: int) -> int:
    """Columns per block so that a block of all rows stays within `BLOCK_BYTES`."""
    return max(256, BLOCK_BYTES // max(1, rows * itemsize))


@workers()
def compare_rows(
    read: Callable[[int, int], Tensor], count: int, pairs: Tensor, columns: Columns, centre: bool
) -> Comparison:
    """Cosines and distances of `count` vectors from their Gram matrix, accumulated block of columns by block.

    All sums run in float64: in float32 the distance of two equal vectors would come out as 3e-4 of their length. To
    centre, the mean of all finite vectors is subtracted before the products: it changes no centred cosine, and keeps
    small differences around a large common part.

    Args:
        read: the vectors' columns `[start, stop)`, [m, stop - start].
        count: number of vectors m.
        pairs: whom each receiver compares itself with, bool [m, m].
        columns: which columns count.
        centre: compare after subtracting, for receiver i, the mean of i and of those it may see.
    """
    gram = torch.zeros(count, count, dtype=torch.float64)
    for start, stop in columns.blocks(block_width(count, gram.element_size())):
        block = read(start, stop).double()
        if centre:
            finite = block.isfinite().all(dim=1)
            block = block - block[finite].sum(dim=0) / finite.sum().clamp(min=1)
        gram += (block @ block.T).cpu()
    gram, pairs = (gram + gram.T) / 2, pairs.cpu()  # a product is symmetric to rounding only
    cosines = centred_cosines(gram, pairs) if centre else cosines_from_gram(gram)
    nan = torch.full_like(gram, float("nan"))
    return Comparison(torch.where(pairs, cosines, nan), torch.where(pairs, distances_from_gram(gram), nan))


@workers()
def mix_rows(terms: Sequence[tuple[Tensor, Tensor]], into: Tensor, where: Tensor, columns: Columns) -> None:
    """Rows `where` of `into`, in `columns`, become the sum of weights @ rows; all else stays.

    A block of columns is computed before it is written, so `into` may be one of the sets that are read.

    Args:
        terms: (weights [w, rows], rows [rows, width]) summands.
        into: [n, width], written in place.
        where: long [w], the rows to write.
        columns: which columns.
    """
    if not len(where):
        return
    weights = [(w.to(rows.device, rows.dtype), rows) for w, rows in terms]
    width = block_width(max(len(into), *(len(rows) for _, rows in weights)), into.element_size())
    for start, stop in columns.blocks(width):
        into[where, start:stop] = sum(w @ rows[:, start:stop] for w, rows in weights)
