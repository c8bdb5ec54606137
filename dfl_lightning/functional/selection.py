"""Choosing senders: the best, the good enough, or some at random.

Row i is the receiver, column j the sender; what is not allowed is never chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dfl_lightning.functional.blocks import row_blocks

__all__ = ["above_threshold", "drawn_k", "random_k", "top_k"]


def top_k(scores: Tensor, allowed: Tensor, k: int | Tensor) -> Tensor:
    """The k senders with the highest scores.

    Args:
        scores: what the receiver thinks of each sender, higher is better, [n, n]; NaN = unknown, never chosen.
        allowed: who can be chosen, bool [n, n].
        k: how many, for all receivers or for each, int or long [n]; fewer where fewer are allowed.

    Returns:
        bool [n, n]; among equal scores the lowest ids.

    Example:
        >>> scores = torch.tensor([[0.0, 0.5, 0.9, 0.5], [0.1, 0.0, torch.nan, 0.2]])
        >>> allowed = torch.tensor([[False, True, True, True], [True, False, True, False]])
        >>> top_k(scores, allowed, 2)
        tensor([[False,  True,  True, False],
                [ True, False, False, False]])
    """
    return _first_k(scores, allowed, k, ascending=False)


def above_threshold(scores: Tensor, allowed: Tensor, threshold: Tensor) -> Tensor:
    """The senders whose score reaches the receiver's threshold (AFIND+, arXiv 2407.04460, algorithm 1, line 3).

    Args:
        scores: what the receiver thinks of each sender, [n, n]; NaN = unknown, never chosen.
        allowed: who can be chosen, bool [n, n].
        threshold: the least score that is good enough, in units of the scores, [n].

    Returns:
        bool [n, n].

    Example:
        >>> scores = torch.tensor([[2.9457, 0.0540, 0.0004]])
        >>> above_threshold(scores, torch.ones(1, 3, dtype=torch.bool), torch.tensor([0.2768]))
        tensor([[ True, False, False]])
    """
    return allowed & (scores.double() >= threshold.double()[:, None])


def random_k(allowed: Tensor, k: int | Tensor, draws: Tensor) -> Tensor:
    """Choose k senders at random: the allowed ones with the smallest draws.

    Args:
        allowed: who can be chosen, bool [n, n].
        k: how many, for all receivers or for each, int or long [n]; fewer where fewer are allowed.
        draws: independent uniform random numbers, [n, n].

    Returns:
        bool [n, n]; every set of k allowed senders is equally likely.

    Example:
        >>> draws = torch.tensor([[0.1, 0.7, 0.2, 0.4]])
        >>> random_k(torch.tensor([[False, True, True, True]]), 2, draws)
        tensor([[False, False,  True,  True]])
    """
    return _first_k(draws, allowed, k, ascending=True)


def drawn_k(allowed: Tensor, k: int | Tensor, generator: Callable[[int], torch.Generator]) -> Tensor:
    """Choose k senders at random as `random_k` does, by the first n numbers of a stream for each receiver.

    Only receivers that have a choice draw.

    Args:
        allowed: who can be chosen, bool [n, n].
        k: how many, for all receivers or for each, int or long [n]; fewer where fewer are allowed.
        generator: receiver -> the beginning of its stream.

    Returns:
        bool [n, n].

    Example:
        >>> allowed = torch.tensor([[False, True, True, True], [True, False, False, True]])
        >>> drawn_k(allowed, 2, lambda receiver: torch.Generator().manual_seed(receiver))
        tensor([[False,  True,  True, False],
                [ True, False, False,  True]])
    """
    limits = k if isinstance(k, Tensor) else torch.full((len(allowed),), k)
    chosen = allowed & (limits > 0)[:, None]
    choosing = torch.nonzero((allowed.sum(1) > limits) & (limits > 0)).squeeze(1)
    for block in row_blocks(len(choosing), allowed.shape[1]):
        rows = choosing[block]
        draws = torch.empty(len(rows), allowed.shape[1], dtype=torch.float64)
        for its, receiver in zip(draws, rows.tolist(), strict=True):
            its.copy_(torch.rand(len(its), generator=generator(receiver), dtype=torch.float64))
        chosen[rows] = random_k(allowed[rows], limits[rows], draws)
    return chosen


def _first_k(values: Tensor, allowed: Tensor, k: int | Tensor, ascending: bool) -> Tensor:
    """The k lowest (`ascending`) or highest values of each row, ties to the lowest id; only allowed ones are sorted."""
    chosen = torch.zeros_like(allowed)
    for block in row_blocks(*allowed.shape):
        receivers, senders = torch.nonzero(allowed[block], as_tuple=True)
        found = values[block][receivers, senders].double()
        found = -found if ascending else found
        known = ~found.isnan()
        receivers, senders, found = receivers[known], senders[known], found[known]
        rows = len(chosen[block])
        heard = torch.bincount(receivers, minlength=rows)
        places = torch.arange(len(receivers), device=receivers.device) - (heard.cumsum(0) - heard)[receivers]
        ranked = found.new_full((rows, int(heard.max()) if rows else 0), -torch.inf)
        # an allowed score of -inf still ranks before the places that are empty
        ranked[receivers, places] = found.clamp(min=torch.finfo(torch.float64).min)
        order = ranked.argsort(dim=1, descending=True, stable=True)
        ranks = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1]).to(order.device).expand_as(order)
        )
        limit = k[block].to(ranks.device)[receivers] if isinstance(k, Tensor) else k
        best = ranks[receivers, places] < limit
        chosen[block][receivers[best], senders[best]] = True
    return chosen
