"""The operation `compare` on plain matrices: cosines and distances, by a Gram matrix or pair by pair, in float64."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.grouped_similarity import gram_is_cheaper, squares_in_groups
from dfl_lightning.bank.comparing.sparse_similarity import compare_few
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.matmul import one_blas_thread, product, scratch
from dfl_lightning.bank.mixing import block_width, strips
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.functional import centred_cosines, cosines_from_gram, distances_from_gram
from dfl_lightning.links import Links
from dfl_lightning.utils.thread_pool import Workers, workers

BLOCK_BYTES = 2**24
"""Bytes of the rows, in float64, that a thread works on at once; products are fast on long blocks."""

LEAST_WIDTH, MAX_WIDTH = 256, 2048
"""Fewest and most columns of a block; a longer block of few rows would not fit into the cache."""

STRIPS_BYTES = 2**28
"""Bytes for the Gram matrices of the strips of columns; there are 4 to 16 strips."""

NEAR = 1e-8
"""Squared distances below this share of the squared lengths are computed again, since a Gram matrix loses their digits.
The relative rounding error of the others is at most 1e-15 / NEAR = 1e-7."""

GPU_BLOCK_BYTES = 2**28
"""Bytes of the rows, in float64, that a GPU works on at once."""

FEW = 0.01
"""The share of all pairs up to which each pair is computed by itself. A Gram matrix takes a product for every pair, and
centring it takes a sum over all vectors for every pair, which is cubic. With 10 neighbours the two ways are equally
fast at 500 to 1,000 vectors."""

Read = Callable[[int, int], Tensor]
"""A function (start, stop) -> these columns of the rows, [rows, stop - start]."""

Change = Callable[[Tensor], Tensor]
"""A function [rows, columns] -> [rows, columns], applied to a block of rows before it is multiplied."""


@dataclass(frozen=True)
class Comparison:
    """Similarities of the two rows of each link.

    Args:
        cosines: float64 [E].
        distances: Euclidean distances, float64 [E].
    """

    cosines: Tensor
    distances: Tensor


Common = Callable[[Tensor], Tensor]
"""A function [rows, columns] -> [columns] that computes what most rows of a block have in common."""


def compare_rows(
    read: Read,
    count: int,
    links: Links,
    columns: Columns,
    centre: bool,
    ranks: Ranks | None = None,
    told: Tensor | None = None,
) -> Comparison:
    """Compute the cosine and the distance between the two vectors of each link.

    All products are computed in float64: in float32 the distance of two equal vectors would be about 3e-4 of their
    length. Distances have a relative error below 1e-6, cosines an absolute error below 1e-9; equal vectors have
    distance 0 and cosine 1 exactly (0 if they are zero). Before centring, what most vectors have in common is
    subtracted from all: this changes no centred cosine and keeps the digits of small differences around a large common
    part. A vector that is not finite gives NaN in its own pairs, and, if centred, in all pairs of the receivers that
    compare themselves with it.

    Few links are computed one by one; many by a matrix of inner products, which then has at most 100 entries per link.

    Args:
        read: function (start, stop) -> these columns of this process's vectors, in ascending order of their nodes.
        count: number of vectors m; only those that are in a link are multiplied.
        links: for each receiver the vectors that it compares its own with.
        columns: the columns that count.
        centre: subtract from both vectors, for receiver i, the mean of vector i and of those that i compares it with.
        ranks: the owners of the vectors; default: this process owns them all.
        told: bool [count], True for vectors that other clients may know. The others affect their own pairs only, not
            even the rounding of other pairs. Default: all are known.
    """
    takes_part = torch.zeros(count, dtype=torch.bool)
    takes_part[links.receivers] = True
    takes_part[links.senders] = True
    compared = torch.nonzero(takes_part).squeeze(1)
    common = (_common_part if told is None else _common_part_of(told[compared])) if centre else None
    index = takes_part.cumsum(0) - 1  # index among the vectors that take part
    receivers, senders = index[links.receivers], index[links.senders]
    if len(links) <= FEW * len(compared) ** 2:
        with workers() as pool:
            vectors = _Vectors(read, count, compared, columns, pool, ranks or Ranks.alone(count))
            pairs = compare_few(vectors.pool, vectors.summed, receivers, senders, len(compared), common, vectors.device)
        return Comparison(*pairs)
    among = Links(receivers, senders, len(compared)).mask
    with workers() as pool, one_blas_thread():
        vectors = _Vectors(read, count, compared, columns, pool, ranks or Ranks.alone(count))
        gram = vectors.products(common)
        if told is None:
            distances = _distances(vectors, gram, among | among.T, lambda block: block)
        else:
            distances = _distances_one_by_one(vectors, gram, among)
    cosines = centred_cosines(gram, among) if centre else cosines_from_gram(gram)
    # Two equal vectors have the same cosine as a vector with itself.
    cosines = torch.where(distances == 0, cosines.diagonal()[:, None], cosines)
    return Comparison(cosines[receivers, senders], distances[receivers, senders])


def compare_sets(
    read: Read, count: int, links: Links, which: Tensor, told: Tensor, columns: Columns, centre: bool, ranks: Ranks
) -> Comparison:
    """Compare receivers' vectors from a first set with senders' vectors from any set; see `compare_rows`.

    Args:
        read: function (start, stop) -> these columns of this process's vectors, first those of the first set, then
            those of the second, and so on.
        count: number of vectors m of a set.
        links: for each receiver the clients that it compares itself with.
        which: the set of each link's sender, long [E].
        told: bool [sets * m], True for vectors that other clients may know.
        columns: the columns that count.
        centre: subtract from both vectors, for receiver i, the mean of its vector from the first set and of those that
            it compares it with.
        ranks: the owners of the vectors of all sets.
    """
    senders = links.senders + count * which
    order = (links.receivers * len(told) + senders).argsort()
    among = Links(links.receivers[order], senders[order], len(told))
    sorted_pairs = compare_rows(read, len(told), among, columns, centre, ranks, told)
    back = order.argsort()
    return Comparison(sorted_pairs.cosines[back], sorted_pairs.distances[back])


def distances_in_groups(
    read: Read, count: int, pairs: Links, groups: Links, columns: Columns, ranks: Ranks | None = None
) -> Tensor:
    """Compute the distance between the two vectors of each pair, float64 [E]; each pair has a group in common.

    A Gram matrix for each group takes less time than the pairs one by one, unless most pairs are in many groups.
    Distances have a relative error below 1e-6, and equal vectors have distance 0. A vector that is not finite gives NaN
    in its own pairs.

    Args:
        read: function (start, stop) -> these columns of this process's vectors, in ascending order of their nodes.
        count: number of vectors m.
        pairs: different pairs of vectors, with the larger id as receiver.
        groups: for each group, as a receiver, its vectors.
        columns: the columns that count.
        ranks: the owners of the vectors; default: this process owns them all.
    """
    takes_part = torch.zeros(count, dtype=torch.bool)
    takes_part[groups.senders] = True
    compared = torch.nonzero(takes_part).squeeze(1)
    if len(pairs) > FEW * len(compared) ** 2 or not gram_is_cheaper(pairs, groups):
        return compare_rows(read, count, pairs, columns, False, ranks).distances
    index = takes_part.cumsum(0) - 1
    among = Links(index[pairs.receivers], index[pairs.senders], len(compared))
    members = Links(groups.receivers, index[groups.senders], groups.nodes, len(compared))
    with workers() as pool, one_blas_thread():
        vectors = _Vectors(read, count, compared, columns, pool, ranks or Ranks.alone(count))
        squares, lengths = squares_in_groups(
            vectors.pool, vectors.summed, among, members, len(compared), vectors.device
        )
        near = torch.nonzero((squares <= NEAR * lengths) & (lengths > 0)).squeeze(1)
        distances = torch.where(lengths.isfinite(), squares.clamp(min=0).sqrt(), torch.nan)
        if len(near):
            of, to = among.receivers[near], among.senders[near]
            distances[near] = compare_few(vectors.pool, vectors.summed, of, to, len(compared), None, vectors.device)[1]
    return distances


class _Vectors:
    """The vectors that are compared, and their inner products.

    The columns are divided into strips, each with a Gram matrix of its own, which are added in the order of the
    columns. Each strip is computed by one thread. With several processes, it is computed by one process, which gets the
    other processes' columns.

    Args:
        read: function (start, stop) -> these columns of this process's vectors.
        count: number of vectors.
        compared: long [c], the nodes whose vectors are multiplied.
        columns: the columns that count.
        pool: threads of the CPU.
        ranks: the owners of the vectors.

    Attributes:
        device: the device of the vectors.
        pool: the threads that work on them; only one for a GPU, which distributes the work itself.
    """

    def __init__(self, read: Read, count: int, compared: Tensor, columns: Columns, pool: Workers, ranks: Ranks) -> None:
        self._read, self._columns, self._ranks = read, columns, ranks
        self.device = read(0, 0).device
        self.pool = pool if self.device.type == "cpu" else Workers(1)
        owners = ranks.owner[compared]
        self._mine = ranks.place[compared[owners == ranks.rank]]
        self._counts = torch.bincount(owners, minlength=ranks.count).tolist()
        self._back = torch.argsort(torch.argsort(owners, stable=True))  # from the order of processes to that of nodes
        self._some = len(self._mine) < int((ranks.own < count).sum())

    def products(self, common: Common | None, change: Change = lambda block: block, count: int | None = None) -> Tensor:
        """Compute the inner products of the changed vectors, float64 [count, count].

        Args:
            common: computes the part of a changed block that is subtracted from all its rows; None: nothing is.
            change: function applied to each block of the vectors.
            count: number of rows that `change` returns; default: all.
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
        return (total + total.T) / 2  # except for BLAS' `syrk`, a product is symmetric only up to rounding

    def _alone(self, pieces: list[list[tuple[int, int]]], add: _Adding) -> list[Tensor]:
        def strip(blocks: list[tuple[int, int]]) -> Tensor:
            total = None
            for start, stop in blocks:
                self.pool.check()
                total = add(total, self._own_columns(start, stop))
            assert total is not None
            return total.cpu()

        return self.pool.map(strip, pieces)

    def _shared(self, pieces: list[list[tuple[int, int]]], add: _Adding) -> Iterator[Tensor]:
        """Add up this process's strips, one block of each at a time; then yield the strips of all processes."""
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
        """Apply `part` to strips of at most `width` columns and add up the results in the order of the strips.

        Args:
            width: largest number of columns of a strip.
            part: function of a strip of all vectors, [c, columns]; its result has the same shape for every strip.
        """
        blocks = list(self._columns.blocks(width))
        if self._ranks.count == 1:
            return _sum_in_order(part(self._own_columns(start, stop)) for start, stop in blocks)
        return _sum_in_order(self._parts_of_all(blocks, part))

    def _parts_of_all(self, blocks: list[tuple[int, int]], part: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Divide the strips among the processes and yield all results of `part`, in the order of the strips."""
        ranks = self._ranks
        result = part(self._own_columns(0, 0).new_zeros(sum(self._counts), 0))
        for first in range(0, len(blocks), ranks.count):
            some = blocks[first : first + ranks.count]
            strips = self._bring([[(0, block)] for block in some] + [[]] * (ranks.count - len(some)))
            with ranks.together():
                if 0 in strips:
                    result = part(strips[0])
            for source in range(len(some)):
                yield ranks.from_rank(source, result.clone())

    def _bring(self, wanted: list[list[tuple[int, tuple[int, int]]]]) -> dict[int, Tensor]:
        """Exchange blocks of the vectors between processes; return this process's blocks, [c, columns] by strip.

        Args:
            wanted: for each process, numbers of strips and the block [start, stop) that it needs of each.
        """
        ranks = self._ranks
        outgoing = []
        for theirs in wanted:
            parts = [self._own_columns(start, stop).reshape(-1) for _, (start, stop) in theirs]
            outgoing.append(torch.cat(parts) if parts else self._own_columns(0, 0).reshape(-1))
        widths = [stop - start for _, (start, stop) in wanted[ranks.rank]]
        pieces = ranks.swap(outgoing, [count * sum(widths) for count in self._counts], outgoing[0])
        blocks = {}
        for position, (number, _) in enumerate(wanted[ranks.rank]):
            before, width = sum(widths[:position]), widths[position]
            rows = [
                piece[count * before : count * (before + width)].view(count, width)
                for piece, count in zip(pieces, self._counts, strict=True)
            ]
            blocks[number] = torch.cat(rows).index_select(0, self._back.to(rows[0].device))
        return blocks

    def _own_columns(self, start: int, stop: int) -> Tensor:
        """Read the columns [start, stop) of the compared vectors of this process."""
        block = self._read(start, stop)
        return block.index_select(0, self._mine.to(block.device)) if self._some else block


def _sum_in_order(parts: Iterable[Tensor]) -> Tensor:
    """Add up the tensors from the first to the last, in place of the first."""
    return functools.reduce(torch.Tensor.add_, parts)


class _Adding:
    """A function that adds a block's inner products to a sum; see `_Vectors.products`."""

    def __init__(self, count: int, width: int, common: Common | None, change: Change) -> None:
        self.count, self._width, self._common, self._change = count, width, common, change
        self._local = threading.local()

    def __call__(self, total: Tensor | None, block: Tensor) -> Tensor:
        """Add the inner products of a block [rows, columns] to `total`, float64 [count, count] (None: zeros)."""
        rows = self._change(block)
        if total is None:
            total = torch.zeros(self.count, self.count, dtype=torch.float64, device=rows.device)
        if not hasattr(self._local, "space"):
            self._local.space = scratch(self.count * self._width, like=total)
        block = self._local.space(self.count, rows.shape[1]).copy_(rows)
        if self._common is not None:
            block -= self._common(rows).double()  # equal dtypes save a conversion pass
        total += product(block, block.T)
        return total


def _select_rows(which: Tensor, change: Change) -> Change:
    """Return a function that selects the rows `which`, long, of the result of `change`."""
    return lambda block: (changed := change(block)).index_select(0, which.to(changed.device))


def _relative_to_first(change: Change) -> Change:
    """Return a function that subtracts the first row of the result of `change` from all its rows, in float64."""

    def differences(block: Tensor) -> Tensor:
        rows = change(block).double()
        return rows - rows[:1]

    return differences


def _common_part(block: Tensor) -> Tensor:
    """Average the rows, [columns], without those that are not finite or longer than four times the median length."""
    lengths = torch.linalg.vector_norm(block, dim=1)
    finite = lengths.isfinite()
    if block.device.type != "cpu":  # avoids operations for which the host would wait for the GPU
        ordinary = lengths <= 4 * lengths.masked_fill(~finite, torch.nan).nanmedian()
        return block.masked_fill(~ordinary[:, None], 0).sum(dim=0) / ordinary.sum().clamp(min=1)
    median = lengths[finite].median() if bool(finite.any()) else lengths.new_zeros(())
    ordinary = lengths <= 4 * median
    if bool(ordinary.all()):
        return block.mean(dim=0)
    return block[ordinary].sum(dim=0) / ordinary.sum().clamp(min=1)


def _common_part_of(which: Tensor) -> Common:
    """Return a function that computes the common part of the rows in the mask, bool [rows]; zeros if it is empty."""
    index = torch.nonzero(which).squeeze(1)
    if not len(index):
        return lambda block: block.new_zeros(block.shape[1])
    return lambda block: _common_part(block.index_select(0, index.to(block.device)))


def _distances_one_by_one(vectors: _Vectors, gram: Tensor, pairs: Tensor) -> Tensor:
    """Compute the distances of the pairs, float64; pairs of nearly equal rows are computed from their differences."""
    distances = distances_from_gram(gram)
    near = _near(gram, distances, pairs)
    receivers, senders = torch.nonzero(near, as_tuple=True)
    if len(receivers):
        _, exact = compare_few(vectors.pool, vectors.summed, receivers, senders, len(gram), None, vectors.device)
        distances[receivers, senders] = exact
    return distances


def _near(gram: Tensor, distances: Tensor, wanted: Tensor) -> Tensor:
    """Find the wanted pairs whose distances have lost digits in the Gram matrix; a mask."""
    squared = gram.diagonal()
    scale = squared[:, None] + squared[None, :]
    near = wanted & (distances.square() <= NEAR * scale) & (scale > 0)
    return near.fill_diagonal_(False)


def _distances(vectors: _Vectors, gram: Tensor, wanted: Tensor, change: Change) -> Tensor:
    """Compute the distances, float64; groups of nearly equal rows are compared again relative to one of them."""
    distances = distances_from_gram(gram)
    near = _near(gram, distances, wanted)
    for group in _groups(near):
        differences = _relative_to_first(_select_rows(group, change))
        inner = wanted[group][:, group]
        products = vectors.products(None, differences, len(group))
        # The recursion ends, since the first row of the differences is zero and thus near to no other.
        exact = _distances(vectors, products, inner, differences)
        again = near[group][:, group]
        distances[group[:, None], group] = torch.where(again, exact, distances[group][:, group])
    return distances


def _groups(linked: Tensor) -> Iterator[Tensor]:
    """Find the connected components of two rows or more, each as indices in ascending order."""
    if not bool(linked.any()):
        return
    labels = torch.arange(len(linked))
    while True:
        reached = torch.where(linked, labels[None, :], len(linked)).min(dim=1).values
        lowest = torch.minimum(labels, reached)
        lowest = lowest[lowest]  # labels are rows of the same component; following them shortens long chains
        if torch.equal(lowest, labels):
            break
        labels = lowest
    for label, size in zip(*torch.unique(labels, return_counts=True), strict=True):
        if size > 1:
            yield torch.nonzero(labels == label).squeeze(1)
