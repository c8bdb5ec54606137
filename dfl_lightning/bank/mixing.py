"""The verb `mix` on bare row sets: rows become weighted sums of rows, a block of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.products import one_blas_thread, product, scratch
from dfl_lightning.bank.ranks import Ranks
from dfl_lightning.bank.threads import Workers, workers

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
    """Columns per block so that a block of all rows stays within `memory`.

    Example:
        >>> block_width(1000, 4, 2**20), block_width(10, 4, 2**20)
        (262, 26214)
    """
    return max(256, memory // max(1, rows * itemsize))


def mix_rows(
    terms: Sequence[tuple[Tensor, Tensor]],
    into: Tensor,
    where: Tensor,
    columns: Columns,
    ranks: Ranks | None = None,
    teams: Tensor | None = None,
) -> None:
    """Rows `where` of `into`, in `columns`, become the sum of weights @ rows; all else stays.

    A block of columns is computed before it is written, so `into` may be one of the sets that are read, and no second
    copy of the rows is needed. A row takes part only where its weight is not 0: a row that is not finite spoils those
    that listen to it and nobody else. Few neighbours are summed one after the other, in the order of the terms and
    rows; many (`DENSE`) by a matrix product.

    Several processes mix together, each its own nodes' rows; the rows that these need come as they are needed, some
    columns at a time. Neither they nor threads show in the bits.

    Args:
        terms: (weights [w, n], rows [own, width]) summands; the same weights in every process.
        into: [own, width], written in place; its dtype is that of the sums.
        where: long [w], the nodes whose rows are written.
        columns: which columns.
        ranks: who owns which nodes; default: this process has them all.
        teams: long [n], receivers with equal numbers belong to one process, and are multiplied in one product; default:
            all are.
    """
    if not len(where) or not len(columns):
        return
    ranks = ranks or Ranks.alone(max(terms[0][0].shape[1], len(into)))
    weights = torch.cat([w.to(into.device, into.dtype) for w, _ in terms], dim=1)
    heard = (weights != 0).any(dim=0)
    dense = _is_dense(weights[:, heard])
    memory = BLOCK_BYTES if into.device.type == "cpu" else GPU_BLOCK_BYTES
    blocks = list(columns.blocks(block_width(int(heard.sum()), into.element_size(), memory)))
    at_once = len(blocks)
    receivers = where.cpu()
    if ranks.count > 1:
        at_once = EXCHANGE_BYTES // (max(1, int(heard.sum())) * into.element_size() * (blocks[0][1] - blocks[0][0]))
        mine = ranks.at_home(receivers)
        receivers, weights = receivers[mine], weights[mine.to(weights.device)]
        heard = heard if dense else (weights != 0).any(dim=0)
    which = heard.split([w.shape[1] for w, _ in terms])
    sources = [
        _Source(rows, torch.nonzero(w).squeeze(1).cpu(), ranks) for (_, rows), w in zip(terms, which, strict=True)
    ]
    weights = weights[:, heard].contiguous()
    combine = _by_product(weights, teams, receivers) if dense else _by_sums(weights)
    write = _writer(into, ranks.place[receivers].to(into.device))

    with workers() as pool, one_blas_thread():
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU shares the work out itself

        def mix(strip: list[tuple[int, int]]) -> None:
            space = scratch(weights.shape[1] * max(stop - start for start, stop in strip), like=weights)
            for start, stop in strip:
                pool.check()
                parts = [source.read(start, stop) for source in sources]
                block = torch.cat(parts, out=space(weights.shape[1], stop - start))
                write(start, stop, combine(block))

        for first in range(0, len(blocks), max(1, at_once)):
            some = blocks[first : first + max(1, at_once)]
            for source in sources:
                source.bring(some)
            with ranks.together():
                if len(receivers):
                    pool.map(mix, strips(some, STRIPS))


class _Source:
    """The rows of a term that somebody listens to.

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
        self._visit = ranks.visit(heard[~self._here.cpu()]) if ranks.count > 1 else None
        self._away = self._visit is not None and self._visit.any
        self._guests: Tensor | None = None
        self._offsets: dict[int, int] = {}

    def bring(self, blocks: list[tuple[int, int]]) -> None:
        """Ask other processes for these columns of their rows."""
        if not self._away:
            return
        assert self._visit is not None
        self._guests = self._visit.bring(torch.cat([self._rows[:, start:stop] for start, stop in blocks], dim=1))
        self._offsets, at = {}, 0
        for start, stop in blocks:
            self._offsets[start], at = at, at + stop - start

    def read(self, start: int, stop: int) -> Tensor:
        """Columns of the heard nodes' rows, [h, stop - start]."""
        if self._all:
            return self._rows[:, start:stop]
        if self._guests is None or not len(self._guests):
            return self._rows[:, start:stop].index_select(0, self._places)
        block = self._rows.new_empty(len(self._places), stop - start)
        block[self._here] = self._rows[:, start:stop][self._places[self._here]]
        at = self._offsets[start]
        block[~self._here] = self._guests[:, at : at + stop - start]
        return block


def strips(blocks: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    """The blocks as at most `count` runs of nearly equal length.

    Example:
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


def _is_dense(weights: Tensor) -> bool:
    return int((weights != 0).sum()) > DENSE * weights.numel()


def _by_product(weights: Tensor, teams: Tensor | None, receivers: Tensor) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block, team by team.

    Bits of a product depend on how many rows it makes.
    """
    if teams is None or len(set(teams[receivers].tolist())) <= 1:
        return lambda block: _dense(weights, block)
    members = [torch.nonzero(teams[receivers] == team).squeeze(1) for team in teams[receivers].unique()]
    shares = [weights[team.to(weights.device)].contiguous() for team in members]
    order = torch.argsort(torch.cat(members)).to(weights.device)
    return lambda block: torch.cat([_dense(share, block) for share in shares]).index_select(0, order)


def _by_sums(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """The function block [rows, columns] -> weights @ block, neighbour by neighbour."""
    receivers, senders = torch.nonzero(weights, as_tuple=True)
    shares = weights[receivers, senders]
    heard = torch.bincount(receivers, minlength=len(weights))
    first = heard.cumsum(0) - heard

    def few(block: Tensor) -> Tensor:
        if not len(block):
            return block.new_zeros(len(weights), block.shape[1])
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
