"""The operation `mix` on plain matrices: weighted sums of rows, a block of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.matmul import one_blas_thread, product, scratch
from dfl_lightning.bank.references import Weights
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.utils.thread_pool import Workers, workers

BLOCK_BYTES = 2**20
"""Bytes of the rows that a thread works on at once: they fit into a core's cache."""

GPU_BLOCK_BYTES = 2**28

EXCHANGE_BYTES = 2**26
"""Approximate bytes of other processes' rows that are fetched at a time."""

STRIPS = 64
"""Number of strips that the columns are divided into: more than there are threads, and independent of their number."""

DENSE = 0.3
"""The share of nonzero weights above which a matrix product is faster than sums over neighbours."""


def block_width(rows: int, itemsize: int, memory: int) -> int:
    """Compute how many columns a block may have so that all its rows fit into the memory; at least 64.

    Args:
        rows: number of rows of the block.
        itemsize: bytes of a number.
        memory: bytes of the block.

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
    """Write the sum over terms of weights @ rows into `columns` of the rows `where` of `into`.

    A block of columns is computed before it is written, so `into` may be one of the matrices that are read, and no
    second copy of the rows is needed. Rows whose weight is 0 do not take part: a row that is not finite affects only
    the nodes that receive it. Few neighbours are summed one after the other, in the order of the terms and rows; many
    (`DENSE`) are combined by a matrix product.

    With several processes, each mixes its own nodes' rows and fetches the rows that these need, some columns at a time.
    The result is the same, bit for bit, for any number of processes and threads.

    Args:
        terms: summands, each the weights of n rows in w sums (or a matrix [w, n]; the same in every process) and this
            process's rows, [own, width].
        into: [own, width], written in place; sums are computed in its dtype.
        where: long [w], the nodes whose rows are written.
        columns: the columns that are written.
        ranks: the owners of the nodes; default: this process owns them all.
        mixing_groups: long [n]; receivers with equal numbers belong to one process and share one matrix product;
            default: all nodes are in one group.
    """
    if not len(where) or not len(columns):
        return
    ranks = ranks or Ranks.alone(max(len(into), *(len(rows) for _, rows in terms)))
    receivers, senders, shares = _entries([Weights.of(weights) for weights, _ in terms], into)
    sizes = [weights.shape[1] for weights, _ in terms]
    is_read = torch.zeros(sum(sizes), dtype=torch.bool, device=into.device)
    is_read[senders] = True
    num_read = int(is_read.sum())
    dense = len(senders) > DENSE * len(where) * num_read
    memory = BLOCK_BYTES if into.device.type == "cpu" else GPU_BLOCK_BYTES
    blocks = list(columns.blocks(block_width(num_read, into.element_size(), memory)))
    at_once, nodes = len(blocks), where.cpu()
    if ranks.count > 1:
        at_once = EXCHANGE_BYTES // (max(1, num_read) * into.element_size() * (blocks[0][1] - blocks[0][0]))
        mine = ranks.at_home(nodes)
        nodes, here = nodes[mine], mine.to(into.device)
        kept = here[receivers]
        receivers, senders, shares = (here.cumsum(0) - 1)[receivers[kept]], senders[kept], shares[kept]
        if not dense:  # a product reads all rows in every process, so that its bits do not depend on the processes
            is_read.zero_()[senders] = True
    sources = [
        RowSource(rows, torch.nonzero(part).squeeze(1).cpu(), ranks)
        for (_, rows), part in zip(terms, is_read.split(sizes), strict=True)
    ]
    senders = (is_read.cumsum(0) - 1)[senders]  # index among the rows that are read
    counts = [len(source) for source in sources]
    shape = (len(nodes), sum(counts))
    if dense:
        groups = None if mixing_groups is None else mixing_groups[nodes]
        combine = _by_product(receivers, senders, shares, shape, groups)
    else:
        combine = _by_sums(receivers, senders, shares, shape)
    write = _writer(into, ranks.place[nodes].to(into.device))

    with workers() as pool, one_blas_thread() if dense else nullcontext():
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU distributes the work itself

        def mix(strip: list[tuple[int, int]]) -> None:
            space = scratch(shape[1] * max(stop - start for start, stop in strip), like=shares)
            for start, stop in strip:
                pool.check()
                block = space(shape[1], stop - start)
                for source, part in zip(sources, block.split(counts), strict=True):
                    source.read_into(part, start, stop)
                write(start, stop, combine(block))

        for first in range(0, len(blocks), max(1, at_once)):
            some = blocks[first : first + max(1, at_once)]
            for source in sources:
                source.bring(some)
            with ranks.together():
                if len(nodes):
                    pool.map(mix, strips(some, STRIPS))


class RowSource:
    """The rows of one term that receivers of this process read.

    Args:
        rows: the rows of this process, [own, width].
        senders: long [s], the nodes whose rows are read.
        ranks: the owners of the nodes.
    """

    def __init__(self, rows: Tensor, senders: Tensor, ranks: Ranks) -> None:
        self._rows = rows
        places = ranks.place[senders].to(rows.device)
        self._all = len(senders) == len(rows) and ranks.count == 1
        self._places = places
        self._here = places >= 0
        self._exchange = ranks.row_exchange(senders[~self._here.cpu()]) if ranks.count > 1 else None
        self._away = self._exchange is not None and self._exchange.any
        self._remote: Tensor | None = None
        self._offsets: dict[int, int] = {}

    def bring(self, blocks: list[tuple[int, int]]) -> None:
        """Fetch these columns of the rows that other processes own."""
        if not self._away:
            return
        assert self._exchange is not None
        self._remote = self._exchange.bring(torch.cat([self._rows[:, start:stop] for start, stop in blocks], dim=1))
        self._offsets, at = {}, 0
        for start, stop in blocks:
            self._offsets[start], at = at, at + stop - start

    def __len__(self) -> int:
        return len(self._places)

    def read(self, start: int, stop: int) -> Tensor:
        """Return the columns [start, stop) of the senders' rows, [s, stop - start]."""
        if self._all:
            return self._rows[:, start:stop]
        if self._remote is None or not len(self._remote):
            return self._rows[:, start:stop].index_select(0, self._places)
        block = self._rows.new_empty(len(self._places), stop - start)
        block[self._here] = self._rows[:, start:stop][self._places[self._here]]
        at = self._offsets[start]
        block[~self._here] = self._remote[:, at : at + stop - start]
        return block

    def read_into(self, block: Tensor, start: int, stop: int) -> None:
        """Copy the columns [start, stop) of the senders' rows into a contiguous block, [s, stop - start]."""
        picked = not self._all and (self._remote is None or not len(self._remote))
        if picked and block.dtype == self._rows.dtype:  # without a copy in between
            torch.index_select(self._rows[:, start:stop], 0, self._places, out=block)
        else:
            block.copy_(self.read(start, stop))


def strips(blocks: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """Divide the blocks into at most `count` runs of nearly equal length.

    Args:
        blocks: column ranges [start, stop), in order.
        count: largest number of runs, 1 or more.

    Examples:
        >>> strips([(0, 4), (4, 8), (8, 10)], 2)
        [[(0, 4)], [(4, 8), (8, 10)]]
    """
    count = min(count, len(blocks))
    return [blocks[len(blocks) * i // count : len(blocks) * (i + 1) // count] for i in range(count)]


def _writer(into: Tensor, where: Tensor) -> Callable[[int, int, Tensor], object]:
    """Return a function that writes values into the columns [start, stop) of the rows `where`."""
    if not len(where):
        return lambda start, stop, values: None
    first, last = int(where[0]), int(where[-1]) + 1
    if first < last and torch.equal(where, torch.arange(first, last, device=where.device)):
        # Consecutive rows are written by a plain copy, which takes a third of the time.
        return lambda start, stop, values: into[first:last, start:stop].copy_(values)
    return lambda start, stop, values: into[:, start:stop].index_copy_(0, where, values)


def _entries(parts: Sequence[Weights], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Collect the nonzero weights of all terms: receivers and senders, long [k], and shares, [k]; receivers ascend.

    Args:
        parts: weights of each term; senders are numbered through all terms.
        like: a tensor with the device of the results and the dtype of the shares.
    """
    entries: list[tuple[Tensor, ...]] = []
    before = 0
    for weights in parts:
        shares = weights.shares.to(like.device, like.dtype)
        entries.append((weights.jobs.to(like.device), weights.rows.to(like.device) + before, shares))
        before += weights.shape[1]
    receivers, senders, shares = (torch.cat(several) for several in zip(*entries, strict=True))
    if len(parts) > 1:
        order = receivers.argsort(stable=True)
        receivers, senders, shares = receivers[order], senders[order], shares[order]
    counted = shares != 0  # the smallest float64 numbers become 0 in float32
    return receivers[counted], senders[counted], shares[counted]


def weighted_sums(
    receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int]
) -> Callable[[Tensor], Tensor]:
    """Return a function that computes weights @ block for a block [rows, columns].

    Few weights are applied by sums of rows, many by a matrix product.

    Args:
        receivers: the sum that each nonzero weight belongs to, long [k], ascending.
        senders: the row of the block that it multiplies, long [k].
        shares: the weight itself, [k].
        shape: (number of sums, rows of the block).
    """
    if len(senders) > DENSE * shape[0] * shape[1]:
        return _by_product(receivers, senders, shares, shape, None)
    return _by_sums(receivers, senders, shares, shape)


def _by_product(
    receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int], mixing_groups: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """Return a function that computes weights @ block by matrix products, one for each mixing group.

    The bits of a product depend on how many rows it computes. Groups, long [w], do not depend on the number of
    processes, so neither do the bits.
    """
    weights = shares.new_zeros(shape)
    weights[receivers, senders] = shares
    if mixing_groups is None or len(mixing_groups.unique()) <= 1:
        return lambda block: _dense(weights, block)
    members = [torch.nonzero(mixing_groups == group).squeeze(1).to(weights.device) for group in mixing_groups.unique()]
    parts = [weights[rows] for rows in members]
    order = torch.argsort(torch.cat(members))
    return lambda block: torch.cat([_dense(part, block) for part in parts]).index_select(0, order)


def _by_sums(receivers: Tensor, senders: Tensor, shares: Tensor, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """Return a function that computes weights @ block by weighted sums of rows."""
    num_senders = torch.bincount(receivers, minlength=shape[0])
    first = num_senders.cumsum(0) - num_senders

    def sum_rows(block: Tensor) -> Tensor:
        if not len(block):
            return block.new_zeros(shape[0], block.shape[1])
        return torch.nn.functional.embedding_bag(senders, block, first, mode="sum", per_sample_weights=shares)

    return sum_rows


def _dense(weights: Tensor, block: Tensor) -> Tensor:
    """Multiply weights and block, taking 0 times infinity or NaN as 0."""
    mixed = product(weights, block)
    if bool(mixed.sum().isfinite()):
        return mixed
    wrong = ~block.isfinite()
    mixed = product(weights, block.masked_fill(wrong, 0))  # sums without such numbers keep their bits
    for row in torch.nonzero(wrong.any(dim=1)).flatten().tolist():
        receivers = torch.nonzero(weights[:, row]).squeeze(1)
        mixed[receivers] += weights[receivers, row, None] * torch.where(wrong[row], block[row], 0)
    return mixed
