"""Cosines and distances of few pairs of many rows: each pair by itself, without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dfl_lightning.bank.mixing import block_width
from dfl_lightning.utils.thread_pool import Workers

STRIP_BYTES = 2**26
"""How much of the rows, in float64, is read at once."""

LEAST_WIDTH, MAX_WIDTH = 128, 1024
"""Columns of a strip: rows of fewer numbers are read slowly from all over the memory."""

PIECE = 2**16
"""Numbers of one side of some pairs that a thread works on at once: a few times as many stay in a core's cache."""

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

    Sums go over the pairs' own differences, so that neighbouring vectors keep all their digits. Who computes a pair,
    and with which other pairs, changes nothing in it.

    Args:
        pool: shares the pairs out.
        summed: goes through the columns of the vectors.
        receivers: of each pair, long [k], in ascending order.
        senders: of each pair, long [k].
        count: number of vectors m.
        common: what is subtracted from all vectors of a block, [columns], before each receiver subtracts the mean of
            itself and its senders; None: nothing is subtracted, ever.
        device: where the vectors are.
    """
    members, firsts = _members(receivers, senders, count)
    if torch.device(device).type == "cpu":
        width = max(LEAST_WIDTH, min(MAX_WIDTH, STRIP_BYTES // (8 * max(1, count))))
        step = PIECE // width
    else:
        width = block_width(count, 8, GPU_STRIP_BYTES)
        step = max(1, GPU_PIECE // width)
    to, of = receivers.to(device), senders.to(device)
    bags, begins = members.to(device), firsts.to(device)
    pieces = [slice(start, start + step) for start in range(0, len(receivers), step)]
    vectors = [slice(start, start + step) for start in range(0, count, step)]
    lengths_of = [len(receivers)] * 3 + [count] * 2

    def sums(rows: Tensor) -> Tensor:
        """Of a strip [m, columns]: inner products, squares of senders and of differences; of vectors, of moved ones."""
        total = torch.zeros(sum(lengths_of), dtype=torch.float64, device=rows.device)
        inner, of_sender, apart, squared, own = total.split(lengths_of)
        strip = rows.double() if common is None else rows.double() - common(rows).double()
        centres: Tensor | None = None
        if common is not None:
            centres = torch.nn.functional.embedding_bag(bags, strip, begins, mode="mean")
        for some in vectors:
            squared[some] += strip[some].square().sum(1)
            if centres is not None:
                own[some] += (strip[some] - centres[some]).square_().sum(1)

        def add(piece: slice) -> None:
            pool.check()
            of_receiver, from_sender = strip[to[piece]], strip[of[piece]]
            apart[piece] += (of_receiver - from_sender).square_().sum(1)
            if centres is not None:
                centre = centres[to[piece]]
                of_receiver -= centre
                from_sender -= centre
                of_sender[piece] += from_sender.square().sum(1)
            inner[piece] += from_sender.mul_(of_receiver).sum(1)

        pool.map(add, pieces)
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
        heard = firsts.diff(append=torch.tensor([len(members)]))
        whose = torch.arange(count).repeat_interleave(heard)
        least = TOLERANCE * torch.zeros(count, dtype=torch.float64).index_add_(0, whose, squared[members]) / heard
        zero = ~((own > least)[receivers] & (of_sender > least[receivers]))
        itself = (own > least).double()
        sees_broken = torch.zeros(count).index_add_(0, whose, broken[members].float()) > 0
        unknown = sees_broken[receivers] | broken[senders]
    cosines = (inner / lengths).masked_fill(zero, 0).clamp(-1, 1)
    cosines = torch.where(apart == 0, itself[receivers], cosines)  # equal vectors: as with oneself
    unlike = broken[receivers] | broken[senders]
    return cosines.masked_fill(unknown, torch.nan), distances.masked_fill(unlike, torch.nan)


def _members(receivers: Tensor, senders: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each receiver and its senders, without repeating itself: all of them one after the other, and firsts, [m]."""
    others = receivers != senders
    everybody = torch.arange(count)
    who, whose = torch.cat([everybody, senders[others]]), torch.cat([everybody, receivers[others]])
    order = whose.argsort(stable=True)
    sizes = torch.bincount(whose, minlength=count)
    return who[order], sizes.cumsum(0) - sizes
