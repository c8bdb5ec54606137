"""The verb `mix` on bare row sets: rows become weighted sums of rows, a block of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.products import one_blas_thread, product, scratch
from dfl_lightning.bank.threads import Workers, workers

BLOCK_BYTES = 2**20
"""How much of the rows a thread works on at once: what a core's cache holds."""

GPU_BLOCK_BYTES = 2**28

STRIPS = 64
"""Pieces of work that the columns are cut into: more than there are threads, and never a function of their number."""

DENSE = 0.3
"""The share of weights other than zero from which on a matrix product is faster than sums of neighbours."""


def block_width(rows: int, itemsize: int, memory: int) -> int:
    """Columns per block so that a block of all rows stays within `memory`.

    Example:
        >>> block_width(1000, 4, 2**20), block_width(10, 4, 2**20)
        (262, 26214)
    """
    return max(256, memory // max(1, rows * itemsize))


def mix_rows(terms: Sequence[tuple[Tensor, Tensor]], into: Tensor, where: Tensor, columns: Columns) -> None:
    """Rows `where` of `into`, in `columns`, become the sum of weights @ rows; all else stays.

    A block of columns is computed before it is written, so `into` may be one of the sets that are read, and no second
    copy of the rows is needed. A row takes part only where its weight is not 0: a row that is not finite spoils those
    that listen to it and nobody else. Few neighbours are summed one after the other, in the order of the terms and
    rows; many (`DENSE`) by a matrix product.

    Args:
        terms: (weights [w, rows], rows [rows, width]) summands.
        into: [n, width], written in place; its dtype is that of the sums.
        where: long [w], the rows to write.
        columns: which columns.
    """
    if not len(where):
        return
    receivers, senders, shares = _entries([weights for weights, _ in terms], into)
    heard = torch.zeros(sum(len(rows) for _, rows in terms), dtype=torch.bool, device=into.device)
    heard[senders] = True
    which = heard.split([len(rows) for _, rows in terms])
    sources = [
        (rows, None if bool(w.all()) else torch.nonzero(w).squeeze(1))
        for (_, rows), w in zip(terms, which, strict=True)
    ]
    senders = (heard.cumsum(0) - 1)[senders]  # among those that are heard
    read = int(heard.sum())
    combine = _combiner(receivers, senders, shares, (len(where), read))
    memory = BLOCK_BYTES if into.device.type == "cpu" else GPU_BLOCK_BYTES
    blocks = list(columns.blocks(block_width(read, into.element_size(), memory)))
    write = _writer(into, where)

    with workers() as pool, one_blas_thread():
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU shares the work out itself

        def mix(strip: list[tuple[int, int]]) -> None:
            space = scratch(read * max(stop - start for start, stop in strip), like=shares)
            for start, stop in strip:
                pool.check()
                parts = [_rows(rows[:, start:stop], which) for rows, which in sources]
                block = torch.cat(parts, out=space(read, stop - start))
                write(start, stop, combine(block))

        pool.map(mix, strips(blocks, STRIPS))


def strips(blocks: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """The blocks as at most `count` runs of nearly equal length.

    Example:
        >>> strips([(0, 4), (4, 8), (8, 10)], 2)
        [[(0, 4)], [(4, 8), (8, 10)]]
    """
    count = min(count, len(blocks))
    return [blocks[len(blocks) * i // count : len(blocks) * (i + 1) // count] for i in range(count)]


def _rows(block: Tensor, which: Tensor | None) -> Tensor:
    return block if which is None else block.index_select(0, which)


def _writer(into: Tensor, where: Tensor) -> Callable[[int, int, Tensor], object]:
    """The function that writes columns [start, stop) of the rows `where`."""
    first, last = int(where[0]), int(where[-1]) + 1
    if first < last and torch.equal(
        where, torch.arange(first, last, device=where.device)
    ):  # a plain copy takes a third of the time
        return lambda start, stop, values: into[first:last, start:stop].copy_(values)
    return lambda start, stop, values: into[:, start:stop].index_copy_(0, where, values)


def _entries(parts: Sequence[Tensor], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights that are not 0, row by row: receivers and senders, long [k], and shares, [k] in the type of `like`.

    Args:
        parts: weights [w, rows] of one term after the other; senders are counted through.
        like: whose device and type.
    """
    found: list[tuple[Tensor, ...]] = []
    before = 0
    for weights in parts:
        receivers, senders = torch.nonzero(weights, as_tuple=True)
        shares = weights[receivers, senders].to(like.device, like.dtype)
        found.append((receivers.to(like.device), senders.to(like.device) + before, shares))
        before += weights.shape[1]
    receivers, senders, shares = (torch.cat(several) for several in zip(*found, strict=True))
    if len(parts) > 1:
        order = receivers.argsort(stable=True)
        receivers, senders, shares = receivers[order], senders[order], shares[order]
    counted = shares != 0  # the smallest float64 are none in float32
    return receivers[counted], senders[counted], shares[counted]


def _combiner(receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block, for weights [w, rows] with these entries."""
    if len(senders) > DENSE * shape[0] * shape[1]:
        weights = shares.new_zeros(shape)
        weights[receivers, senders] = shares
        return lambda block: _dense(weights, block)
    heard = torch.bincount(receivers, minlength=shape[0])
    first = heard.cumsum(0) - heard

    def few(block: Tensor) -> Tensor:
        if not len(block):
            return block.new_zeros(shape[0], block.shape[1])
        return torch.nn.functional.embedding_bag(senders, block, first, mode="sum", per_sample_weights=shares)

    return few


def _dense(weights: Tensor, block: Tensor) -> Tensor:
    """The product, where 0 times a number that is not finite is 0."""
    mixed = product(weights, block)
    if bool(mixed.sum().isfinite()):
        return mixed
    wrong = ~block.isfinite()
    mixed = product(weights, block.masked_fill(wrong, 0))  # finite numbers give the same bits as before
    for row in torch.nonzero(wrong.any(dim=1)).flatten().tolist():
        listeners = torch.nonzero(weights[:, row]).squeeze(1)
        mixed[listeners] += weights[listeners, row, None] * torch.where(wrong[row], block[row], 0)
    return mixed
