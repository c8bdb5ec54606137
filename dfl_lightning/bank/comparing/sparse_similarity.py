"""Cosines and distances of few pairs of many rows: each pair by itself, without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dfl_lightning.bank.mixing import block_width
from dfl_lightning.utils.thread_pool import Workers

STRIP_BYTES = 2**27
"""How much of the rows, in float32, makes a strip: what several processes send each other at once."""

LEAST_WIDTH, MAX_WIDTH = 128, 1024
"""Columns of a strip: rows of fewer numbers are read slowly from all over the memory."""

PIECE = 2**18
"""Numbers of the senders of some receivers that a thread works on at once: few enough to stay in a cache, enough that
the calls themselves take little."""

GPU_STRIP_BYTES, GPU_PIECE = 2**28, 2**25
"""The same on a GPU, which shares the work out itself: few launches of long operations."""

TOLERANCE = 1e-9
"""A centred vector counts as zero below this share of the mean squared length; see `centred_cosines`."""


Summed = Callable[[int, Callable[[Tensor], Tensor]], Tensor]
"""(width, part) -> the sum over strips of so many columns of what `part` makes of all vectors' columns."""


def compare_few(
    pool: Workers,
    summed: Summed,
    receivers: Tensor,
    senders: Tensor,
    count: int,
    common: Callable[[Tensor], Tensor] | None,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Cosines and distances, float64 [k] each on the CPU, as `compare_rows` defines them.

    Sums go over the pairs' own differences, and a receiver's centre is found relative to itself, so that neighbouring
    vectors keep all their digits. Who computes a pair, and with which other receivers, changes nothing in it.

    Args:
        pool: shares the pairs out.
        summed: goes through the columns of the vectors.
        receivers: of each pair, long [k], in ascending order.
        senders: of each pair, long [k].
        count: number of vectors m.
        common: what is subtracted from all vectors of a block, [columns], before their squared lengths are summed,
            which tell whether a vector is zero once each receiver has subtracted the mean of itself and its senders;
            None: nothing is subtracted, ever.
        device: where the vectors are.
    """
    if torch.device(device).type == "cpu":
        width, numbers = max(LEAST_WIDTH, min(MAX_WIDTH, STRIP_BYTES // (4 * max(1, count)))), PIECE
    else:
        width, numbers = block_width(count, 8, GPU_STRIP_BYTES), GPU_PIECE
    others = torch.nonzero(receivers != senders).squeeze(1)
    pieces = list(_pieces(receivers[others], count, numbers // width))
    to, of, pairs = receivers.to(device), senders.to(device), others.to(device)
    vectors = [slice(start, start + numbers // width) for start in range(0, count, numbers // width)]
    lengths_of = [len(receivers)] * 3 + [count] * 2

    def sums(rows: Tensor) -> Tensor:
        """Of a strip [m, columns]: inner products, squares of senders and of differences; of vectors, of moved ones."""
        total = torch.zeros(sum(lengths_of), dtype=torch.float64, device=rows.device)
        inner, of_sender, apart, squared, own = total.split(lengths_of)
        usual = None if common is None else common(rows).double()

        def add_lengths(some: slice) -> None:
            vector = rows[some].to(torch.float64, copy=True)  # never the rows themselves, where these are float64
            squared[some] = (vector if usual is None else vector.sub_(usual)).square_().sum(1)

        def add_pairs(piece: Tensor) -> None:
            pool.check()
            pair = pairs[piece.to(rows.device)]
            own_row = to[pair[:, 0]]
            receiver = rows.index_select(0, own_row).double().unsqueeze(1)
            sender = rows.index_select(0, of[pair].flatten()).double().unflatten(0, pair.shape)
            if common is None:
                inner[pair] = (sender * receiver).sum(2)
                apart[pair] = sender.sub_(receiver).square_().sum(2)
                return
            sender -= receiver
            apart[pair] = sender.square().sum(2)
            centre = sender.sum(1, keepdim=True).div_(pair.shape[1] + 1)  # relative to the receiver, which is in it
            own[own_row] = centre.square().sum(2).squeeze(1)
            sender -= centre
            inner[pair] = (sender * centre).sum(2).neg_()
            of_sender[pair] = sender.square_().sum(2)

        pool.map(add_lengths, vectors)
        pool.map(add_pairs, pieces)
        return total

    inner, of_sender, apart, squared, own = summed(width, sums).cpu().split(lengths_of)
    distances = apart.sqrt()
    broken = ~squared.isfinite()
    if common is None:
        lengths = squared[receivers].sqrt() * squared[senders].sqrt()
        zero = (squared[receivers] == 0) | (squared[senders] == 0)
        itself = (squared > 0).double()
        unknown = broken[receivers] | broken[senders]
    else:
        lengths = own[receivers].sqrt() * of_sender.sqrt()
        whose, members = receivers[others], senders[others]
        heard = torch.bincount(whose, minlength=count) + 1
        least = TOLERANCE * squared.index_add(0, whose, squared[members]) / heard
        zero = ~((own > least)[receivers] & (of_sender > least[receivers]))
        itself = (own > least).double()
        sees_broken = broken.float().index_add(0, whose, broken[members].float()) > 0
        unknown = sees_broken[receivers] | broken[senders]
    cosines = (inner / lengths).masked_fill(zero, 0).clamp(-1, 1)
    cosines = torch.where(apart == 0, itself[receivers], cosines)  # equal vectors: as with oneself
    unlike = broken[receivers] | broken[senders]
    return cosines.masked_fill(unknown, torch.nan), distances.masked_fill(unlike, torch.nan)


def _pieces(receivers: Tensor, count: int, numbers: int) -> Iterator[Tensor]:
    """Places of pairs, long [receivers, senders of each] a piece: of receivers that have equally many senders.

    Args:
        receivers: of each pair, long [k], in ascending order.
        count: number of vectors m.
        numbers: how many pairs a piece has at most; all of a receiver's in any case.
    """
    sizes = torch.bincount(receivers, minlength=count)
    firsts = sizes.cumsum(0) - sizes
    order = sizes.argsort(stable=True)
    for size, some in zip(*torch.unique(sizes, return_counts=True), strict=True):
        alike, order = order[:some], order[some:]
        if size > 0:
            yield from (firsts[alike][:, None] + torch.arange(int(size))).split(max(1, numbers // int(size)))
