"""The verb `compare` on bare rows: cosines and distances, from one Gram matrix or pair by pair, all in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.few_pairs import compare_few
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import block_width, strips
from dfl_lightning.bank.products import one_blas_thread, product, scratch
from dfl_lightning.bank.threads import Workers, workers
from dfl_lightning.functional import centred_cosines, cosines_from_gram, distances_from_gram

BLOCK_BYTES = 2**24
"""How much of the rows, in float64, a thread works on at once; a product wants long blocks."""

MAX_WIDTH = 2048
"""Columns per block at most; a longer block of few rows would only leave the cache."""

STRIPS_BYTES = 2**28
"""Memory for the Gram matrices of the strips of columns, 4 of them at least and 16 at most."""

NEAR = 1e-8
"""Squared distances below this share of the squared lengths lose digits in a Gram matrix: 1e-15 / NEAR = 1e-7 is left
of rounding in the others."""

FEW = 0.01
"""The share of all pairs up to which each pair is computed by itself. A Gram matrix costs a product for every pair, and
centring it a sum over all vectors for every pair, which is cubic: with 10 neighbours the two are equally fast at about
1,000 vectors."""

Read = Callable[[int, int], Tensor]
"""Columns [start, stop) of all rows, [rows, stop - start]."""


@dataclass(frozen=True)
class Comparison:
    """Similarities of rows; NaN outside the compared pairs.

    Args:
        cosines: float64 [m, m].
        distances: Euclidean, float64 [m, m].
    """

    cosines: Tensor
    distances: Tensor


def compare_rows(read: Read, count: int, pairs: Tensor, columns: Columns, centre: bool) -> Comparison:
    """Cosines and distances of `count` vectors.

    All products run in float64: in float32 the distance of two equal vectors would come out as 3e-4 of their length.
    Distances have a relative error below 1e-6, and cosines an absolute one below 1e-9; equal vectors are at distance 0
    and have cosine 1 exactly (0 if they are zero). To centre, what most vectors have in common is subtracted before the
    products: it changes no centred cosine, and keeps small differences around a large common part. A vector that is
    not finite is NaN in its own pairs (and, centred, for receivers that see it).

    Args:
        read: the vectors' columns `[start, stop)`, [m, stop - start].
        count: number of vectors m; only those that are in a pair are multiplied.
        pairs: whom each receiver compares itself with, bool [m, m].
        columns: which columns count.
        centre: compare after subtracting, for receiver i, the mean of i and of those it may see.
    """
    pairs = pairs.cpu()
    compared = torch.nonzero(pairs.any(dim=0) | pairs.any(dim=1)).squeeze(1)
    if len(compared) < count:
        read = _of(read, compared)
    among = pairs if len(compared) == count else pairs[compared][:, compared]
    full = torch.full((2, count, count), float("nan"), dtype=torch.float64)
    receivers, senders = torch.nonzero(among, as_tuple=True)
    if len(receivers) <= FEW * len(compared) ** 2:
        with workers() as pool:
            common = _common_part if centre else None
            found = compare_few(pool, read, len(compared), receivers, senders, columns, common)
        for whole, values in zip(full, found, strict=True):
            whole[compared[receivers], compared[senders]] = values
        return Comparison(*full)
    with workers() as pool, one_blas_thread():
        gram = _gram(pool, read, len(compared), columns, centre)
        distances = _distances(pool, read, columns, gram, among | among.T)
    cosines = centred_cosines(gram, among) if centre else cosines_from_gram(gram)
    cosines = torch.where(distances == 0, cosines.diagonal()[:, None], cosines)  # equal vectors: as with oneself
    for whole, part in zip(full, (cosines, distances), strict=True):
        whole[compared[:, None], compared] = part.masked_fill(~among, float("nan"))
    return Comparison(*full)


def _of(read: Read, which: Tensor) -> Read:
    """Only the rows `which`."""

    def read_some(start: int, stop: int) -> Tensor:
        block = read(start, stop)
        return block.index_select(0, which.to(block.device))

    return read_some


def _relative_to_first(read: Read) -> Read:
    """The first row subtracted from all, in float64."""

    def read_differences(start: int, stop: int) -> Tensor:
        block = read(start, stop).double()
        return block - block[:1]

    return read_differences


def _gram(pool: Workers, read: Read, count: int, columns: Columns, centre: bool) -> Tensor:
    """Inner products, float64 [count, count]: a Gram matrix per strip of columns, added in the order of columns."""
    limit = max(4, min(16, STRIPS_BYTES // max(1, 8 * count**2)))
    width = min(MAX_WIDTH, block_width(count, 8, BLOCK_BYTES))

    def strip(blocks: list[tuple[int, int]]) -> Tensor:
        total = space = None
        for start, stop in blocks:
            pool.check()
            rows = read(start, stop)
            if total is None or space is None:
                total = torch.zeros(count, count, dtype=torch.float64, device=rows.device)
                space = scratch(count * width, like=total)
            block = space(count, stop - start).copy_(rows)
            if centre:
                block -= _common_part(rows).double()  # dtypes that differ would cost another pass
            total += product(block, block.T)
        assert total is not None
        return total.cpu()

    total = torch.zeros(count, count, dtype=torch.float64)
    for part in pool.map(strip, strips(list(columns.blocks(width)), limit)):
        total += part
    return (total + total.T) / 2  # a product is symmetric to rounding only, but for BLAS' own


def _common_part(block: Tensor) -> Tensor:
    """The mean of the rows, [columns], without those that are not finite or four times as long as is usual."""
    lengths = torch.linalg.vector_norm(block, dim=1)
    finite = lengths.isfinite()
    usual = lengths[finite].median() if bool(finite.any()) else lengths.new_zeros(())
    ordinary = lengths <= 4 * usual
    if bool(ordinary.all()):
        return block.mean(dim=0)
    return block[ordinary].sum(dim=0) / ordinary.sum().clamp(min=1)


def _distances(pool: Workers, read: Read, columns: Columns, gram: Tensor, wanted: Tensor) -> Tensor:
    """Distances, float64; rows that nearly agree are compared once more after subtracting one of them."""
    squared = gram.diagonal()
    scale = squared[:, None] + squared[None, :]
    distances = distances_from_gram(gram)
    near = wanted & (distances.square() <= NEAR * scale) & (scale > 0)
    near.fill_diagonal_(False)
    for group in _groups(near):
        read_group = _relative_to_first(_of(read, group))
        inner = wanted[group][:, group]
        products = _gram(pool, read_group, len(group), columns, False)
        exact = _distances(pool, read_group, columns, products, inner)  # ends: a row of zeros is near to nobody
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
