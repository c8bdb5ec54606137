"""The verb `mix` on bare row sets: rows become weighted sums of rows, a block of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.matmul import one_blas_thread, product, scratch
from dfl_lightning.bank.references import Weights
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.utils.thread_pool import Workers, workers

BLOCK_BYTES = 2**20
"""How much of the rows a thread works on at once: what a core's cache holds."""

GPU_BLOCK_BYTES = 2**28

EXCHANGE_BYTES = 2**26
"""How much of other processes' rows is brought here at a time, about."""

STRIPS = 64
"""Pieces of work that the columns are cut into: more than there are threads, and never a function of their number."""

DENSE = 0.3
"""The share of weights other than zero from which on a matrix product is faster than sums of neighbours."""


def block_width(rows: int, itemsize: int, memory: int) -> int:
    """Columns of a block of all rows that stays within a number of bytes; at least 64.

    Args:
        rows: of the block.
        itemsize: bytes of a number.
        memory: bytes.

    Examples:
        >>> block_width(1000, 4, 2**20), block_width(10, 4, 2**20)
        (262, 26214)
    """
    return max(64, memory // (itemsize * max(1, rows)))


def mix_rows(
    terms: Sequence[tuple[Weights | Tensor, Tensor]],
    into: Tensor,
    where: Tensor,
    columns: Columns,
    ranks: Ranks | None = None,
    mixing_groups: Tensor | None = None,
) -> None:
    """Rows `where` of `into`, in `columns`, become the sum of weights @ rows; all else stays.

    A block of columns is computed before it is written, so `into` may be one of the sets that are read, and no second
    copy of the rows is needed. A row takes part only where its weight is not 0: a row that is not finite spoils those
    that receive from it and from no other. Few neighbours are summed one after the other, in the order of the terms and
    rows; many (`DENSE`) by a matrix product.

    Several processes mix together, each its own nodes' rows; the rows that these need come as they are needed, some
    columns at a time. Neither they nor threads show in the bits.

    Args:
        terms: (weights of n rows in w sums, or a matrix [w, n]; rows [own, width]) summands; the same weights in every
            process.
        into: [own, width], written in place; its dtype is that of the sums.
        where: long [w], the nodes whose rows are written.
        columns: which columns.
        ranks: who owns which nodes; default: this process has them all.
        mixing_groups: long [n], receivers with equal numbers belong to one process, and are multiplied in one product;
            default: all are.
    """
    if not len(where) or not len(columns):
        return
    ranks = ranks or Ranks.alone(max(len(into), *(len(rows) for _, rows in terms)))
    receivers, senders, shares = _entries([Weights.of(weights) for weights, _ in terms], into)
    sizes = [weights.shape[1] for weights, _ in terms]
    heard = torch.zeros(sum(sizes), dtype=torch.bool, device=into.device)
    heard[senders] = True
    read = int(heard.sum())
    dense = len(senders) > DENSE * len(where) * read
    memory = BLOCK_BYTES if into.device.type == "cpu" else GPU_BLOCK_BYTES
    blocks = list(columns.blocks(block_width(read, into.element_size(), memory)))
    at_once, nodes = len(blocks), where.cpu()
    if ranks.count > 1:
        at_once = EXCHANGE_BYTES // (max(1, read) * into.element_size() * (blocks[0][1] - blocks[0][0]))
        mine = ranks.at_home(nodes)
        nodes, here = nodes[mine], mine.to(into.device)
        kept = here[receivers]
        receivers, senders, shares = (here.cumsum(0) - 1)[receivers[kept]], senders[kept], shares[kept]
        if not dense:  # else bits of the products would depend on whose rows are read here
            heard.zero_()[senders] = True
    sources = [
        RowSource(rows, torch.nonzero(part).squeeze(1).cpu(), ranks)
        for (_, rows), part in zip(terms, heard.split(sizes), strict=True)
    ]
    senders = (heard.cumsum(0) - 1)[senders]  # among those that are read
    shape = (len(nodes), int(heard.sum()))
    if dense:
        groups = None if mixing_groups is None else mixing_groups[nodes]
        combine = _by_product(receivers, senders, shares, shape, groups)
    else:
        combine = _by_sums(receivers, senders, shares, shape)
    write = _writer(into, ranks.place[nodes].to(into.device))

    with workers() as pool, one_blas_thread():
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU shares the work out itself

        def mix(strip: list[tuple[int, int]]) -> None:
            space = scratch(shape[1] * max(stop - start for start, stop in strip), like=shares)
            for start, stop in strip:
                pool.check()
                parts = [source.read(start, stop) for source in sources]
                block = torch.cat(parts, out=space(shape[1], stop - start))
                write(start, stop, combine(block))

        for first in range(0, len(blocks), max(1, at_once)):
            some = blocks[first : first + max(1, at_once)]
            for source in sources:
                source.bring(some)
            with ranks.together():
                if len(nodes):
                    pool.map(mix, strips(some, STRIPS))


class RowSource:
    """The rows of a term that a receiver reads.

    Args:
        rows: of this process, [own, width].
        heard: long [h], nodes.
        ranks: who owns which nodes.
    """

    def __init__(self, rows: Tensor, heard: Tensor, ranks: Ranks) -> None:
        self._rows = rows
        places = ranks.place[heard].to(rows.device)
        self._all = len(heard) == len(rows) and ranks.count == 1
        self._places = places
        self._here = places >= 0
        self._exchange = ranks.row_exchange(heard[~self._here.cpu()]) if ranks.count > 1 else None
        self._away = self._exchange is not None and self._exchange.any
        self._remote: Tensor | None = None
        self._offsets: dict[int, int] = {}

    def bring(self, blocks: list[tuple[int, int]]) -> None:
        """Ask other processes for these columns of their rows."""
        if not self._away:
            return
        assert self._exchange is not None
        self._remote = self._exchange.bring(torch.cat([self._rows[:, start:stop] for start, stop in blocks], dim=1))
        self._offsets, at = {}, 0
        for start, stop in blocks:
            self._offsets[start], at = at, at + stop - start

    def read(self, start: int, stop: int) -> Tensor:
        """Columns of the senders' rows, [h, stop - start].

        Args:
            start: first column.
            stop: end of the columns.
        """
        if self._all:
            return self._rows[:, start:stop]
        if self._remote is None or not len(self._remote):
            return self._rows[:, start:stop].index_select(0, self._places)
        block = self._rows.new_empty(len(self._places), stop - start)
        block[self._here] = self._rows[:, start:stop][self._places[self._here]]
        at = self._offsets[start]
        block[~self._here] = self._remote[:, at : at + stop - start]
        return block


def strips(blocks: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """The blocks as at most `count` runs of nearly equal length.

    Args:
        blocks: [start, stop) each, in order.
        count: of the runs, 1 or more.

    Examples:
        >>> strips([(0, 4), (4, 8), (8, 10)], 2)
        [[(0, 4)], [(4, 8), (8, 10)]]
    """
    count = min(count, len(blocks))
    return [blocks[len(blocks) * i // count : len(blocks) * (i + 1) // count] for i in range(count)]


def _writer(into: Tensor, where: Tensor) -> Callable[[int, int, Tensor], object]:
    """The function that writes columns [start, stop) of the rows `where`."""
    if not len(where):
        return lambda start, stop, values: None
    first, last = int(where[0]), int(where[-1]) + 1
    if first < last and torch.equal(
        where, torch.arange(first, last, device=where.device)
    ):  # a plain copy takes a third of the time
        return lambda start, stop, values: into[first:last, start:stop].copy_(values)
    return lambda start, stop, values: into[:, start:stop].index_copy_(0, where, values)


def _entries(parts: Sequence[Weights], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights that are not 0, row by row: receivers and senders, long [k], and shares, [k] in the type of `like`.

    Args:
        parts: weights of one term after the other; senders are counted through.
        like: whose device and type.
    """
    found: list[tuple[Tensor, ...]] = []
    before = 0
    for weights in parts:
        shares = weights.shares.to(like.device, like.dtype)
        found.append((weights.jobs.to(like.device), weights.rows.to(like.device) + before, shares))
        before += weights.shape[1]
    receivers, senders, shares = (torch.cat(several) for several in zip(*found, strict=True))
    if len(parts) > 1:
        order = receivers.argsort(stable=True)
        receivers, senders, shares = receivers[order], senders[order], shares[order]
    counted = shares != 0  # the smallest float64 are none in float32
    return receivers[counted], senders[counted], shares[counted]


def weighted_sums(
    receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int]
) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block; few weights by sums of rows, many by a product.

    Args:
        receivers: of each weight that is not 0, long [k], ascending.
        senders: the row of the block, long [k].
        shares: the weight, [k].
        shape: (number of sums, rows of the block).
    """
    if len(senders) > DENSE * shape[0] * shape[1]:
        return _by_product(receivers, senders, shares, shape, None)
    return _by_sums(receivers, senders, shares, shape)


def _by_product(
    receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int], mixing_groups: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block, for weights [w, rows] with these entries.

    Bits of a product depend on how many rows it makes: each group, long [w], has one of its own.
    """
    weights = shares.new_zeros(shape)
    weights[receivers, senders] = shares
    if mixing_groups is None or len(mixing_groups.unique()) <= 1:
        return lambda block: _dense(weights, block)
    members = [torch.nonzero(mixing_groups == group).squeeze(1).to(weights.device) for group in mixing_groups.unique()]
    parts = [weights[some] for some in members]
    order = torch.argsort(torch.cat(members))
    return lambda block: torch.cat([_dense(part, block) for part in parts]).index_select(0, order)


def _by_sums(receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block, for weights [w, rows] with these entries."""
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
