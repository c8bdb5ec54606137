"""FL-FDMS (arXiv 2205.13222): how similar clients have been so far, and which one replaces a dropped client.

A round of the paper (algorithm 1), and what does it here:

1. some clients drop out; the active ones train and send their updates           (`dropout`, the objective)
2. scores of pairs of active clients, r = (cos + 1) / 2 of their updates         (`similarity_scores`, on_trained)
3. R_ij: the running mean of these scores over N_ij rounds                        (`running_mean`)
4. a dropped client's friend: the active one with the highest R_ij               (`friends`; `FDMS`, on_substitute)
5. the server averages the updates, a friend's in the place of a dropped one     (the aggregation, on_mix)
6. optional, section 5.3: pairs that fall behind by Theta_t are no candidates    (`elimination_threshold`,
   any more, and are not compared                                                `remaining_candidates`; `theta_scale`)

Without a server each receiver does 2 to 5 for the clients that it receives from (`functional.fdms_receivers`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "elimination_threshold",
    "friends",
    "observed_share",
    "remaining_candidates",
    "running_mean",
    "similarity_scores",
]


def similarity_scores(cosines: Tensor) -> Tensor:
    """Compute the score of a pair of updates, r = (cos + 1) / 2 (FL-FDMS eq. 14).

    Args:
        cosines: cosines of the clients' updates, any shape; NaN = not observed.

    Returns:
        Scores in [0, 1], float64, same shape; NaN stays NaN.

    Examples:
        >>> similarity_scores(torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0]))
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    return 0.5 * (cosines.double() + 1)


def running_mean(scores: Tensor, counts: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean score of every pair over the rounds in which both were active (FL-FDMS eq. 15).

    Args:
        scores: R, the means so far, [..., m, m]; read only where `counts` is at least 1.
        counts: N, how many scores each mean holds, [..., m, m].
        observed: this round's scores, [..., m, m]; NaN where a pair was not observed. The diagonal is ignored.

    Returns:
        The new means (float64) and the new counts (the dtype they had), both [..., m, m]; arguments stay.

    Examples:
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
    new = ~observed.isnan() & ~_itself(observed)
    history = torch.where(counts > 0, counts * scores, torch.zeros_like(scores))
    return torch.where(new, (history + observed) / (counts + 1), scores), counts + new.to(counts.dtype)


def friends(scores: Tensor, counts: Tensor, active: Tensor, candidates: Tensor | None = None) -> Tensor:
    """Return the active client most similar so far to each client: phi(k) = argmax of R_ki (FL-FDMS section 5.1).

    Args:
        scores: R, mean scores, [..., m, m].
        counts: N, in how many rounds each pair was observed, [..., m, m]; only observed pairs can be friends.
        active: active clients, bool [..., m]; an inactive client is no friend.
        candidates: C, who may be client k's friend, bool [..., m, m] (section 5.3); a client none of whose candidates
            is eligible looks at all the others. None: all clients are candidates.

    Returns:
        The friend of each client k, never k itself, long [..., m]; among equals the lowest id; -1 where there is none.

    Examples:
        >>> scores = torch.tensor([[0.0, 0.2, 0.9], [0.2, 0.0, 0.4], [0.9, 0.4, 0.0]])
        >>> friends(scores, torch.ones(3, 3), torch.tensor([True, True, False]))
        tensor([1, 0, 0])
    """
    eligible = active[..., None, :] & (counts >= 1) & ~scores.isnan() & ~_itself(scores)
    if candidates is not None:
        near = eligible & candidates
        eligible = torch.where(near.any(-1, keepdim=True), near, eligible)
    best = torch.where(eligible, scores.double(), -torch.inf).argmax(-1)
    return torch.where(eligible.any(-1), best, -1)


def elimination_threshold(
    index: int,
    clients: int,
    rounds: int,
    max_friends: int,
    beta: float,
    failure: float = 0.05,
    gap: float = 0.0,
) -> float:
    """Compute how far behind its best candidate a client must be to be no friend (FL-FDMS theorem 2).

    Theta_t = sqrt((2 ln(2 K^2 T B_max) - 2 ln p) / (beta t)) + delta_f

    Args:
        index: t, the round, counted from 1.
        clients: K.
        rounds: T, of the whole run.
        max_friends: B_max, the most friends that a client can have.
        beta: least share of the rounds in which a pair was observed, above 0.
        failure: p, probability that any friend of any client is ever eliminated, above 0.
        gap: delta_f, the largest difference between the true scores of two friends of a client.

    Returns:
        Theta_t, in units of scores, which differ by 1 at most.

    Examples:
        >>> [round(elimination_threshold(t, 20, 500, 3, 0.25), 4) for t in (1, 50, 500)]
        [11.6597, 1.6489, 0.5214]
    """
    needed = 2 * math.log(2 * clients**2 * rounds * max_friends) - 2 * math.log(failure)
    return math.sqrt(needed / (beta * index)) + gap


def observed_share(counts: Tensor, compared: Tensor, index: int) -> float:
    """Compute the beta that a run has shown: the least share of the rounds in which a pair was observed.

    Args:
        counts: N, in how many rounds each pair was observed, [m, m].
        compared: pairs that are still compared, bool [m, m]; pairs that were never observed do not count.
        index: rounds so far, t.

    Returns:
        In (0, 1]; 0 where no pair was observed.

    Examples:
        >>> counts = torch.tensor([[0, 3, 1], [3, 0, 0], [1, 0, 0]])
        >>> observed_share(counts, torch.ones(3, 3, dtype=torch.bool), 4)
        0.25
    """
    seen = counts[compared & (counts >= 1)]
    return float(seen.min()) / index if len(seen) else 0.0


def remaining_candidates(scores: Tensor, counts: Tensor, candidates: Tensor, threshold: float) -> Tensor:
    """Return the candidates that are not clearly worse than the best one (FL-FDMS section 5.3).

    Client i leaves the candidates of k where max over C_k of R_kj, less R_ki, reaches the threshold. Only pairs that
    were observed can be the best, or leave.

    Args:
        scores: R, mean scores, [m, m].
        counts: N, in how many rounds each pair was observed, [m, m].
        candidates: C, bool [m, m], row k holds the candidates of client k.
        threshold: Theta_t, above 0.

    Returns:
        The candidates of the next round, bool [m, m], within `candidates`.

    Examples:
        >>> scores = torch.tensor([[0.0, 0.9, 0.4], [0.9, 0.0, 0.5], [0.4, 0.5, 0.0]])
        >>> others = ~torch.eye(3, dtype=torch.bool)
        >>> remaining_candidates(scores, torch.ones(3, 3), others, 0.45)
        tensor([[False,  True, False],
                [ True, False,  True],
                [ True,  True, False]])
    """
    known = candidates & (counts >= 1) & ~_itself(scores)
    best = torch.where(known, scores.double(), -torch.inf).amax(-1, keepdim=True)
    return candidates & ~(known & (best - scores.double() >= threshold))


def _itself(pairs: Tensor) -> Tensor:
    """Where a client meets itself, bool [m, m]."""
    return torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)
