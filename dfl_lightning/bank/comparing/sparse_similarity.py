"""Cosines and distances of few pairs of many rows, each computed by itself, without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dfl_lightning.bank.mixing import block_width
from dfl_lightning.utils.thread_pool import Workers

STRIP_BYTES = 2**27
"""Bytes of the rows, in float32, of a strip of columns; several processes exchange one strip each at a time."""

LEAST_WIDTH, MAX_WIDTH = 128, 1024
"""Fewest and most columns of a strip; shorter pieces of rows, scattered over the memory, are slow to read."""

PIECE = 2**17
"""Numbers of senders' rows that a thread works on at once: few enough for a cache, and enough to make the overhead of
the calls small."""

GPU_STRIP_BYTES, GPU_PIECE = 2**28, 2**25
"""The same on a GPU, where few launches of long operations are fast."""

TOLERANCE = 1e-9
"""A centred vector counts as zero below this share of the mean squared length; see `centred_cosines`."""


Summed = Callable[[int, Callable[[Tensor], Tensor]], Tensor]
"""A function (width, part) that applies `part` to strips of at most `width` columns and adds up the results."""


def compare_few(
    pool: Workers,
    summed: Summed,
    receivers: Tensor,
    senders: Tensor,
    count: int,
    common: Callable[[Tensor], Tensor] | None,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Compute the cosine and the distance of each pair, float64 [k] each on the CPU; see `compare_rows`.

    Distances are sums over the pairs' own differences, and a receiver's centre is computed relative to the receiver, so
    that nearly equal vectors keep all their digits. The result of a pair does not depend on the process that computes
    it, nor on the receivers that are computed with it.

    Args:
        pool: the threads that the pairs are divided among.
        summed: function that sums over strips of the vectors' columns.
        receivers: the receiver of each pair, long [k], in ascending order.
        senders: the sender of each pair, long [k].
        count: number of vectors m.
        common: None: compare without centring. Otherwise compare after subtracting each receiver's mean of itself and
            its senders. The function computes the common part of a block, [columns], which is subtracted before the
            squared lengths are summed; these tell whether a centred vector counts as zero.
        device: the device of the vectors.
    """
    if torch.device(device).type == "cpu":
        width, numbers = strip_width(count), PIECE
    else:
        width, numbers = block_width(count, 8, GPU_STRIP_BYTES), GPU_PIECE
    others = torch.nonzero(receivers != senders).squeeze(1)
    pieces = list(_pieces(receivers[others], count, numbers // width))
    to, of, pairs = receivers.to(device), senders.to(device), others.to(device)
    vectors = [slice(start, start + numbers // width) for start in range(0, count, numbers // width)]
    lengths_of = [len(receivers)] * 3 + [count] * 2

    def sums(rows: Tensor) -> Tensor:
        """Compute the sums of a strip [m, columns], concatenated.

        By pair: inner products, squared lengths of centred senders, squared distances. By vector: squared lengths
        without the common part, and squared lengths of centred receivers.
        """
        total = torch.zeros(sum(lengths_of), dtype=torch.float64, device=rows.device)
        inner, of_sender, apart, squared, of_receiver = total.split(lengths_of)
        common_part = None if common is None else common(rows).double()

        def add_lengths(some: slice) -> None:
            vector = rows[some].to(torch.float64, copy=True)  # a copy, since the next line changes it in place
            squared[some] = (vector if common_part is None else vector.sub_(common_part)).square_().sum(1)

        def add_pairs(piece: Tensor) -> None:
            pool.check()
            pair = pairs[piece.to(rows.device)]
            receiver_row = to[pair[:, 0]]
            receiver = rows.index_select(0, receiver_row).double().unsqueeze(1)
            sender = rows.index_select(0, of[pair].flatten()).double().unflatten(0, pair.shape)
            if common is None:
                inner[pair] = (sender * receiver).sum(2)
                apart[pair] = sender.sub_(receiver).square_().sum(2)
                return
            sender -= receiver
            apart[pair] = sender.square().sum(2)
            # The mean of the receiver and its senders, relative to the receiver.
            centre = sender.sum(1, keepdim=True).div_(pair.shape[1] + 1)
            of_receiver[receiver_row] = centre.square().sum(2).squeeze(1)
            sender -= centre
            inner[pair] = (sender * centre).sum(2).neg_()
            of_sender[pair] = sender.square_().sum(2)

        pool.map(add_lengths, vectors)
        pool.map(add_pairs, pieces)
        return total

    inner, of_sender, apart, squared, of_receiver = summed(width, sums).cpu().split(lengths_of)
    distances = apart.sqrt()
    broken = ~squared.isfinite()
    if common is None:
        lengths = squared[receivers].sqrt() * squared[senders].sqrt()
        zero = (squared[receivers] == 0) | (squared[senders] == 0)
        itself = (squared > 0).double()
        unknown = broken[receivers] | broken[senders]
    else:
        lengths = of_receiver[receivers].sqrt() * of_sender.sqrt()
        centring, members = receivers[others], senders[others]
        sizes = torch.bincount(centring, minlength=count) + 1
        least = TOLERANCE * squared.index_add(0, centring, squared[members]) / sizes
        zero = ~((of_receiver > least)[receivers] & (of_sender > least[receivers]))
        itself = (of_receiver > least).double()
        sees_broken = broken.float().index_add(0, centring, broken[members].float()) > 0
        unknown = sees_broken[receivers] | broken[senders]
    cosines = (inner / lengths).masked_fill(zero, 0).clamp(-1, 1)
    cosines = torch.where(apart == 0, itself[receivers], cosines)  # equal vectors: 1, or 0 if they count as zero
    unlike = broken[receivers] | broken[senders]
    return cosines.masked_fill(unknown, torch.nan), distances.masked_fill(unlike, torch.nan)


def strip_width(count: int) -> int:
    """Return the number of columns of a strip of `count` rows on a CPU."""
    return max(LEAST_WIDTH, min(MAX_WIDTH, STRIP_BYTES // (4 * max(1, count))))


def _pieces(receivers: Tensor, count: int, numbers: int) -> Iterator[Tensor]:
    """Divide the pairs into pieces, long [receivers, senders of each]: indices of pairs.

    Receivers of a piece have equally many senders.

    Args:
        receivers: the receiver of each pair, long [k], in ascending order.
        count: number of vectors m.
        numbers: largest number of pairs of a piece; a piece has at least all pairs of one receiver.
    """
    sizes = torch.bincount(receivers, minlength=count)
    firsts = sizes.cumsum(0) - sizes
    order = sizes.argsort(stable=True)
    for size, some in zip(*torch.unique(sizes, return_counts=True), strict=True):
        alike, order = order[:some], order[some:]
        if size > 0:
            yield from (firsts[alike][:, None] + torch.arange(int(size))).split(max(1, numbers // int(size)))
