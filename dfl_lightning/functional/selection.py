"""Choosing senders: the best, the good enough, or some at random.

Row i is the receiver, column j the sender; what is not allowed is never chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["above_threshold", "random_k", "top_k"]


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
    allowed = allowed & ~scores.isnan()
    # an allowed score of -inf still ranks before whatever is not allowed
    ranked = scores.double().clamp(min=torch.finfo(torch.float64).min)
    ranked = torch.where(allowed, ranked, torch.full_like(ranked, -torch.inf))
    order = ranked.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    limit = k[:, None].to(rank.device) if isinstance(k, Tensor) else k
    return allowed & (rank < limit)


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
    return top_k(-draws, allowed, k)
