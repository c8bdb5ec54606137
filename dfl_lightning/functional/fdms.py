"""FL-FDMS (arXiv 2205.13222): how similar clients have been so far, and who speaks for one that dropped out."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["friends", "running_mean", "similarity_scores"]


def similarity_scores(cosines: Tensor) -> Tensor:
    """The score of a pair of updates, r = (cos + 1) / 2 (FL-FDMS eq. 14).

    Args:
        cosines: cosines of the clients' updates, any shape; NaN = not observed.

    Returns:
        Scores in [0, 1], float64, same shape; NaN stays NaN.

    Example:
        >>> similarity_scores(torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0]))
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    return 0.5 * (cosines.double() + 1)


def running_mean(scores: Tensor, counts: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The mean score of every pair over the rounds in which both were active (FL-FDMS eq. 15).

    Args:
        scores: R, the means so far, [m, m]; read only where `counts` is at least 1.
        counts: N, how many scores each mean holds, [m, m].
        observed: this round's scores, [m, m]; NaN where a pair was not observed. The diagonal is ignored.

    Returns:
        The new means (float64) and the new counts (the dtype they had), both [m, m]. The arguments are not changed.

    Example:
        >>> scores, counts = torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.long)
        >>> for score in (0.9, 0.3, torch.nan):
        ...     scores, counts = running_mean(scores, counts, torch.full((2, 2), score))
        >>> scores, counts
        (tensor([[0.0000, 0.6000],
                [0.6000, 0.0000]], dtype=torch.float64),
         tensor([[0, 2],
                [2, 0]]))
    """
    scores, observed = scores.double(), observed.double()
    new = ~observed.isnan()
    new.fill_diagonal_(False)
    history = torch.where(counts > 0, counts * scores, torch.zeros_like(scores))
    return torch.where(new, (history + observed) / (counts + 1), scores), counts + new.to(counts.dtype)


def friends(scores: Tensor, counts: Tensor, active: Tensor) -> Tensor:
    """The active client that has been most similar to each client: phi(k) = argmax of R_ki (FL-FDMS section 5.1).

    Args:
        scores: R, mean scores, [m, m].
        counts: N, in how many rounds each pair was observed, [m, m]; only observed pairs can be friends.
        active: who is active now, bool [m]; an inactive client is nobody's friend.

    Returns:
        The friend of each client k, never k itself, long [m]; among equals the lowest id; -1 where there is none.

    Example:
        >>> scores = torch.tensor([[0.0, 0.2, 0.9], [0.2, 0.0, 0.4], [0.9, 0.4, 0.0]])
        >>> friends(scores, torch.ones(3, 3), torch.tensor([True, True, False]))
        tensor([1, 0, 0])
    """
    eligible = active[None, :] & (counts >= 1) & ~scores.isnan()
    eligible.fill_diagonal_(False)
    best = torch.where(eligible, scores.double(), torch.full_like(scores, -torch.inf, dtype=torch.float64)).argmax(1)
    return torch.where(eligible.any(1), best, torch.full_like(best, -1))
