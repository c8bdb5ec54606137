"""The verb `compare` on bare rows: cosines and distances, from one Gram matrix or pair by pair, all in float64."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.sparse_similarity import compare_few
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.matmul import one_blas_thread, product, scratch
from dfl_lightning.bank.mixing import block_width, strips
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.functional import centred_cosines, cosines_from_gram, distances_from_gram
from dfl_lightning.links import Links
from dfl_lightning.utils.thread_pool import Workers, workers

BLOCK_BYTES = 2**24
"""How much of the rows, in float64, a thread works on at once; a product wants long blocks."""

LEAST_WIDTH, MAX_WIDTH = 256, 2048
"""Columns per block; a longer block of few rows would only leave the cache."""

STRIPS_BYTES = 2**28
"""Memory for the Gram matrices of the strips of columns, 4 of them at least and 16 at most."""

NEAR = 1e-8
"""Squared distances below this share of the squared lengths lose digits in a Gram matrix: 1e-15 / NEAR = 1e-7 is left
of rounding in the others."""

GPU_BLOCK_BYTES = 2**28
"""How much of the rows, in float64, a GPU works on at once."""

FEW = 0.01
"""The share of all pairs up to which each pair is computed by itself. A Gram matrix costs a product for every pair, and
centring it a sum over all vectors for every pair, which is cubic: with 10 neighbours the two are equally fast at 500 to
1,000 vectors."""

Read = Callable[[int, int], Tensor]
"""Columns [start, stop) of rows, [rows, stop - start]."""

Change = Callable[[Tensor], Tensor]
"""What becomes of a block of rows before it is multiplied, [rows, columns] to [rows, columns]."""


@dataclass(frozen=True)
class Comparison:
    """Similarities of rows, one of each a link.

    Args:
        cosines: float64 [E].
        distances: Euclidean, float64 [E].
    """

    cosines: Tensor
    distances: Tensor


Common = Callable[[Tensor], Tensor]
"""What most rows of a block have in common, [columns], of [rows, columns]."""


def compare_rows(
    read: Read,
    count: int,
    links: Links,
    columns: Columns,
    centre: bool,
    ranks: Ranks | None = None,
    told: Tensor | None = None,
) -> Comparison:
    """Cosines and distances of `count` vectors.

    All products run in float64: in float32 the distance of two equal vectors would come out as 3e-4 of their length.
    Distances have a relative error below 1e-6, and cosines an absolute one below 1e-9; equal vectors are at distance 0
    and have cosine 1 exactly (0 if they are zero). To centre, what most vectors have in common is subtracted before the
    products: it changes no centred cosine, and keeps small differences around a large common part. A vector that is
    not finite is NaN in its own pairs (and, centred, for receivers that see it).

    Few links are compared one by one; many by a matrix of inner products, which then has at most 100 entries a link.

    Args:
        read: columns `[start, stop)` of this process' vectors, in ascending order of their nodes.
        count: number of vectors m; only those that are in a link are multiplied.
        links: whom each receiver compares itself with.
        columns: which columns count.
        centre: compare after subtracting, for receiver i, the mean of i and of those it may see.
        ranks: who owns which vectors; default: this process has them all.
        told: which vectors others may know, bool [count]; the other ones show in their own pairs only, not even in the
            rounding of others. Default: all.
    """
    takes_part = torch.zeros(count, dtype=torch.bool)
    takes_part[links.receivers] = True
    takes_part[links.senders] = True
    compared = torch.nonzero(takes_part).squeeze(1)
    common = (_common_part if told is None else _common_part_of(told[compared])) if centre else None
    place = takes_part.cumsum(0) - 1  # among those that take part
    receivers, senders = place[links.receivers], place[links.senders]
    if len(links) <= FEW * len(compared) ** 2:
        with workers() as pool:
            vectors = _Vectors(read, count, compared, columns, pool, ranks or Ranks.alone(count))
            found = compare_few(vectors.pool, vectors.summed, receivers, senders, len(compared), common, vectors.device)
        return Comparison(*found)
    among = Links(receivers, senders, len(compared)).mask
    with workers() as pool, one_blas_thread():
        vectors = _Vectors(read, count, compared, columns, pool, ranks or Ranks.alone(count))
        gram = vectors.products(common)
        if told is None:
            distances = _distances(vectors, gram, among | among.T, lambda block: block)
        else:
            distances = _distances_one_by_one(vectors, gram, among)
    cosines = centred_cosines(gram, among) if centre else cosines_from_gram(gram)
    cosines = torch.where(distances == 0, cosines.diagonal()[:, None], cosines)  # equal vectors: as with oneself
    return Comparison(cosines[receivers, senders], distances[receivers, senders])


def compare_sets(
    read: Read, count: int, links: Links, which: Tensor, told: Tensor, columns: Columns, centre: bool, ranks: Ranks
) -> Comparison:
    """Cosines and distances between receivers' vectors of a first set and senders' of any, as `compare_rows` does.

    To centre, a receiver's own vector of the first set and those that it compares it with are averaged.

    Args:
        read: columns `[start, stop)` of this process' vectors, all of the first set, then all of the second, and so on.
        count: number of vectors m of a set.
        links: whom each receiver compares itself with.
        which: the set of each link's sender, long [E].
        told: which vectors others may know, bool [sets * m].
        columns: which columns count.
        centre: compare after subtracting, for receiver i, the mean of i and of those it may see.
        ranks: who owns which vectors of all sets.
    """
    senders = links.senders + count * which
    order = (links.receivers * len(told) + senders).argsort()
    among = Links(links.receivers[order], senders[order], len(told))
    found = compare_rows(read, len(told), among, columns, centre, ranks, told)
    back = order.argsort()
    return Comparison(found.cosines[back], found.distances[back])


class _Vectors:
    """The vectors that are compared, and their inner products.

    Columns are cut into strips, each with a Gram matrix of its own, and these are added in the order of the columns. A
    strip is one thread's work; with several processes it is one process' too, which is sent its columns by the others.

    Args:
        read: columns of this process' vectors.
        count: number of vectors.
        compared: long [c], the nodes whose vectors are multiplied.
        columns: which columns count.
        pool: threads of the CPU.
        ranks: who owns which vectors.

    Attributes:
        device: where the vectors are.
        pool: threads that work on them; a GPU shares the work out itself.
    """

    def __init__(self, read: Read, count: int, compared: Tensor, columns: Columns, pool: Workers, ranks: Ranks) -> None:
        self._read, self._columns, self._ranks = read, columns, ranks
        self.device = read(0, 0).device
        self.pool = pool if self.device.type == "cpu" else Workers(1)
        owners = ranks.owner[compared]
        self._mine = ranks.place[compared[owners == ranks.rank]]
        self._counts = torch.bincount(owners, minlength=ranks.count).tolist()
        self._back = torch.argsort(torch.argsort(owners, stable=True))  # from the order of processes
        self._some = len(self._mine) < int((ranks.own < count).sum())

    def products(self, common: Common | None, change: Change = lambda block: block, count: int | None = None) -> Tensor:
        """Inner products of the changed vectors, float64 [count, count].

        Args:
            common: what is subtracted from all of them first; None: nothing.
            change: of their blocks.
            count: rows that it makes of each; default: all.
        """
        count = sum(self._counts) if count is None else count
        limit = max(4, min(16, STRIPS_BYTES // max(1, 8 * count**2)))
        if self.device.type == "cpu":
            width = max(LEAST_WIDTH, min(MAX_WIDTH, block_width(count, 8, BLOCK_BYTES)))
        else:
            width = block_width(count, 8, GPU_BLOCK_BYTES)
        pieces = strips(list(self._columns.blocks(width)), limit)
        widest = max((stop - start for piece in pieces for start, stop in piece), default=0)
        add = _Adding(count, widest, common, change)
        parts = self._alone(pieces, add) if self._ranks.count == 1 else self._shared(pieces, add)
        total = torch.zeros(count, count, dtype=torch.float64)
        for part in parts:
            total += part
        return (total + total.T) / 2  # a product is symmetric to rounding only, but for BLAS' own

    def _alone(self, pieces: list[list[tuple[int, int]]], add: _Adding) -> list[Tensor]:
        def strip(blocks: list[tuple[int, int]]) -> Tensor:
            total = None
            for start, stop in blocks:
                self.pool.check()
                total = add(total, self._own(start, stop))
            assert total is not None
            return total.cpu()

        return self.pool.map(strip, pieces)

    def _shared(self, pieces: list[list[tuple[int, int]]], add: _Adding) -> Iterator[Tensor]:
        """Each process adds up its strips, one block of each at a time; then all exchange theirs."""
        ranks = self._ranks
        mine = range(ranks.rank, len(pieces), ranks.count)
        totals: dict[int, Tensor] = {}
        for step in range(max(map(len, pieces), default=0)):
            due = [(number, blocks[step]) for number, blocks in enumerate(pieces) if step < len(blocks)]
            blocks = self._bring([[d for d in due if d[0] % ranks.count == rank] for rank in range(ranks.count)])

            def strip(number: int, blocks: dict[int, Tensor] = blocks) -> None:
                if number in blocks:
                    totals[number] = add(totals.get(number), blocks[number])

            with ranks.together():
                self.pool.map(strip, mine)
        for number in range(len(pieces)):
            if number not in totals:
                totals[number] = torch.empty(add.count, add.count, dtype=torch.float64, device=self.device)
            yield ranks.from_rank(number % ranks.count, totals.pop(number)).cpu()

    def summed(self, width: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum over strips of at most `width` columns of what `part` makes of them, added in their order.

        Args:
            width: columns of a strip.
            part: columns of all vectors, [c, columns], to numbers, always as many.
        """
        blocks = list(self._columns.blocks(width))
        if self._ranks.count == 1:
            return _added(part(self._own(start, stop)) for start, stop in blocks)
        return _added(self._of_others(blocks, part))

    def _of_others(self, blocks: list[tuple[int, int]], part: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """What all processes make of the strips, each of every `count`-th one."""
        ranks = self._ranks
        made = part(self._own(0, 0).new_zeros(sum(self._counts), 0))
        for first in range(0, len(blocks), ranks.count):
            some = blocks[first : first + ranks.count]
            strips = self._bring([[(0, block)] for block in some] + [[]] * (ranks.count - len(some)))
            with ranks.together():
                if 0 in strips:
                    made = part(strips[0])
            for source in range(len(some)):
                yield ranks.from_rank(source, made.clone())

    def _bring(self, wanted: list[list[tuple[int, tuple[int, int]]]]) -> dict[int, Tensor]:
        """Blocks of all vectors, [c, columns] by strip.

        Args:
            wanted: for each process, strips and the blocks of them that it wants.
        """
        ranks = self._ranks
        outgoing = []
        for theirs in wanted:
            parts = [self._own(start, stop).reshape(-1) for _, (start, stop) in theirs]
            outgoing.append(torch.cat(parts) if parts else self._own(0, 0).reshape(-1))
        widths = [stop - start for _, (start, stop) in wanted[ranks.rank]]
        pieces = ranks.swap(outgoing, [count * sum(widths) for count in self._counts], outgoing[0])
        found = {}
        for place, (number, _) in enumerate(wanted[ranks.rank]):
            before, width = sum(widths[:place]), widths[place]
            rows = [
                piece[count * before : count * (before + width)].view(count, width)
                for piece, count in zip(pieces, self._counts, strict=True)
            ]
            found[number] = torch.cat(rows).index_select(0, self._back.to(rows[0].device))
        return found

    def _own(self, start: int, stop: int) -> Tensor:
        """Columns of the compared vectors of this process."""
        block = self._read(start, stop)
        return block.index_select(0, self._mine.to(block.device)) if self._some else block


def _added(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, from the first to the last."""
    return functools.reduce(torch.Tensor.add_, parts)


class _Adding:
    """Adds a block's inner products to a sum; see `_Vectors.products`."""

    def __init__(self, count: int, width: int, common: Common | None, change: Change) -> None:
        self.count, self._width, self._common, self._change = count, width, common, change
        self._local = threading.local()

    def __call__(self, total: Tensor | None, block: Tensor) -> Tensor:
        """`total`, float64 [count, count] (None: nothing yet), with the products of a block [rows, columns]."""
        rows = self._change(block)
        if total is None:
            total = torch.zeros(self.count, self.count, dtype=torch.float64, device=rows.device)
        if not hasattr(self._local, "space"):
            self._local.space = scratch(self.count * self._width, like=total)
        block = self._local.space(self.count, rows.shape[1]).copy_(rows)
        if self._common is not None:
            block -= self._common(rows).double()  # dtypes that differ would cost another pass
        total += product(block, block.T)
        return total


def _of(which: Tensor, change: Change) -> Change:
    """Only the rows `which` of what `change` makes."""
    return lambda block: (changed := change(block)).index_select(0, which.to(changed.device))


def _relative_to_first(change: Change) -> Change:
    """The first row subtracted from all, in float64."""

    def differences(block: Tensor) -> Tensor:
        rows = change(block).double()
        return rows - rows[:1]

    return differences


def _common_part(block: Tensor) -> Tensor:
    """The mean of the rows, [columns], without those that are not finite or four times as long as is usual."""
    lengths = torch.linalg.vector_norm(block, dim=1)
    finite = lengths.isfinite()
    if block.device.type != "cpu":  # nothing there asks for a number, which the host would wait for
        ordinary = lengths <= 4 * lengths.masked_fill(~finite, torch.nan).nanmedian()
        return block.masked_fill(~ordinary[:, None], 0).sum(dim=0) / ordinary.sum().clamp(min=1)
    usual = lengths[finite].median() if bool(finite.any()) else lengths.new_zeros(())
    ordinary = lengths <= 4 * usual
    if bool(ordinary.all()):
        return block.mean(dim=0)
    return block[ordinary].sum(dim=0) / ordinary.sum().clamp(min=1)


def _common_part_of(which: Tensor) -> Common:
    """The same of some of the rows, bool; nothing where there are none of these."""
    places = torch.nonzero(which).squeeze(1)
    if not len(places):
        return lambda block: block.new_zeros(block.shape[1])
    return lambda block: _common_part(block.index_select(0, places.to(block.device)))


def _distances_one_by_one(vectors: _Vectors, gram: Tensor, pairs: Tensor) -> Tensor:
    """Distances of the pairs, float64; those of rows that nearly agree from their own differences alone."""
    distances = distances_from_gram(gram)
    near = _near(gram, distances, pairs)
    receivers, senders = torch.nonzero(near, as_tuple=True)
    if len(receivers):
        _, exact = compare_few(vectors.pool, vectors.summed, receivers, senders, len(gram), None, vectors.device)
        distances[receivers, senders] = exact
    return distances


def _near(gram: Tensor, distances: Tensor, wanted: Tensor) -> Tensor:
    """The wanted pairs whose distances have lost digits in the Gram matrix."""
    squared = gram.diagonal()
    scale = squared[:, None] + squared[None, :]
    near = wanted & (distances.square() <= NEAR * scale) & (scale > 0)
    return near.fill_diagonal_(False)


def _distances(vectors: _Vectors, gram: Tensor, wanted: Tensor, change: Change) -> Tensor:
    """Distances, float64; rows that nearly agree are compared once more after subtracting one of them."""
    distances = distances_from_gram(gram)
    near = _near(gram, distances, wanted)
    for group in _groups(near):
        differences = _relative_to_first(_of(group, change))
        inner = wanted[group][:, group]
        products = vectors.products(None, differences, len(group))
        exact = _distances(vectors, products, inner, differences)  # ends: a row of zeros is near to none
        again = near[group][:, group]
        distances[group[:, None], group] = torch.where(again, exact, distances[group][:, group])
    return distances


def _groups(linked: Tensor) -> Iterator[Tensor]:
    """Connected components of two rows or more, each as indices in ascending order."""
    if not bool(linked.any()):
        return
    labels = torch.arange(len(linked))
    while True:
        reached = torch.where(linked, labels[None, :], len(linked)).min(dim=1).values
        lowest = torch.minimum(labels, reached)
        lowest = lowest[lowest]  # a label is a row of the same component: long chains need few steps
        if torch.equal(lowest, labels):
            break
        labels = lowest
    for label, size in zip(*torch.unique(labels, return_counts=True), strict=True):
        if size > 1:
            yield torch.nonzero(labels == label).squeeze(1)
