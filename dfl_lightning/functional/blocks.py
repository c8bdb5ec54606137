"""Large matrices some rows at a time: temporaries stay small where rows have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

__all__ = ["by_row_blocks", "row_blocks"]

BLOCK_ENTRIES = 2**21
"""Entries of a block: a few dozen megabytes for all temporaries of a function together."""

FEWEST_ROWS = 16


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices that cut a matrix into blocks of rows of about equal size in memory.

    Args:
        rows: of the matrix, n >= 0.
        columns: of the matrix.

    Example:
        >>> list(row_blocks(300, 10_000))
        [slice(0, 209, None), slice(209, 300, None)]
    """
    step = max(FEWEST_ROWS, BLOCK_ENTRIES // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def by_row_blocks(function: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """`function(*matrices)`, some rows at a time; each row of the result must depend on the same rows only.

    Args:
        function: matrices [r, ...] -> [r, ...].
        matrices: of equally many rows, or of one row for all.

    Example:
        >>> import torch
        >>> by_row_blocks(lambda a, b: (a + b).sum(1), torch.ones(3, 2), torch.ones(1, 2))
        tensor([4., 4., 4.])
    """
    rows = max(map(len, matrices))
    blocks = list(row_blocks(rows, max(matrix[:1].numel() for matrix in matrices)))
    if len(blocks) <= 1:
        return function(*matrices)
    whole: Tensor | None = None
    for block in blocks:
        part = function(*(matrix[block] if len(matrix) == rows else matrix for matrix in matrices))
        if whole is None:
            whole = part.new_empty(rows, *part.shape[1:])
        whole[block] = part
    assert whole is not None
    return whole
