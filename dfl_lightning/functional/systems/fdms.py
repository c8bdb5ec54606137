"""FL-FDMS (arXiv 2205.13222): running means of similarities, and the friend that replaces a dropped client.

A round of the paper (algorithm 1), and the code of each step:

1. some clients drop out; the active ones train and send their updates           (`dropout`, the objective)
2. scores of pairs of active clients, r = (cos + 1) / 2 of their updates, or     (`similarity_scores`,
   r = -|u_i - u_j|                                                              `distance_scores`, on_trained)
3. R_ij: the running mean of these scores over N_ij rounds                        (`running_mean`)
4. a dropped client's friend: the active one with the highest R_ij               (`friends`; `FDMS`, on_substitute)
5. the server averages the updates, a friend's instead of a dropped one          (the aggregation, on_mix)
6. optional, section 5.3: pairs that are worse than the best one by Theta_t      (`elimination_threshold`,
   stop being candidates, and are not compared                                   `remaining_candidates`; `theta_scale`)

Without a server each receiver does 2 to 5 for the clients that it receives from (`functional.fdms_receivers`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "distance_scores",
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


def distance_scores(distances: Tensor) -> Tensor:
    """Compute the score of a pair of updates from their distance, r = -|u_i - u_j| (FL-FDMS section 5.1).

    The section offers it as an alternative to eq. 14. It has no lower bound, and its unit is that of the updates, so
    that Theta_t, which is for scores between 0 and 1, says nothing about it.

    Args:
        distances: Euclidean distances of the clients' updates, 0 or more, any shape; NaN = not observed.

    Returns:
        Scores of at most 0, float64, same shape; NaN where a distance is unknown or infinite.

    Examples:
        >>> distance_scores(torch.tensor([0.0, 0.5, 2.0, torch.inf]))
        tensor([ 0.0000, -0.5000, -2.0000,     nan], dtype=torch.float64)
    """
    scores = 0.0 - distances.double()
    return scores.masked_fill(scores.isinf(), torch.nan)


def running_mean(scores: Tensor, counts: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Update the mean score of each pair over the rounds in which both clients were active (FL-FDMS eq. 15).

    Args:
        scores: R, the means so far, [..., m, m]; read only if `counts` is at least 1.
        counts: N, the number of scores in each mean, [..., m, m].
        observed: this round's scores, [..., m, m]; NaN if a pair was not observed. The diagonal is ignored.

    Returns:
        The new means (float64) and the new counts (of the same dtype as before), both [..., m, m]; the arguments are
        not changed.

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
    """Return the friend of each client k, the most similar active client: phi(k) = argmax_i R_ki (FL-FDMS section 5.1).

    Args:
        scores: R, mean scores, [..., m, m].
        counts: N, number of rounds in which each pair was observed, [..., m, m]; only observed pairs can be friends.
        active: active clients, bool [..., m]; only these can be friends.
        candidates: C, the clients that may be client k's friend in row k, bool [..., m, m] (section 5.3). If none of
            them is eligible, all other clients are candidates. None: all clients are candidates.

    Returns:
        The friend of each client k, never k itself, long [..., m]; the lowest id among equals; -1 if there is none.

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
    """Compute the difference to the best score at which a client stops being a candidate (FL-FDMS theorem 2).

    Theta_t = sqrt((2 ln(2 K^2 T B_max) - 2 ln p) / (beta t)) + delta_f

    Args:
        index: t, the round, counted from 1.
        clients: K.
        rounds: T, of the whole run.
        max_friends: B_max, the largest number of friends of a client.
        beta: least share of the rounds in which a pair was observed, above 0.
        failure: p, bound of the probability that a friend of some client is eliminated in the run, above 0.
        gap: delta_f, the largest difference between the true scores of two friends of a client.

    Returns:
        Theta_t, in units of scores, which differ by at most 1.

    Examples:
        >>> [round(elimination_threshold(t, 20, 500, 3, 0.25), 4) for t in (1, 50, 500)]
        [11.6597, 1.6489, 0.5214]
    """
    needed = 2 * math.log(2 * clients**2 * rounds * max_friends) - 2 * math.log(failure)
    return math.sqrt(needed / (beta * index)) + gap


def observed_share(counts: Tensor, compared: Tensor, index: int) -> float:
    """Compute the beta of a run so far: the least share of the rounds in which a pair was observed.

    Args:
        counts: N, number of rounds in which each pair was observed, [m, m].
        compared: pairs that are still compared, bool [m, m]; pairs that were never observed do not count.
        index: t, the number of rounds so far.

    Returns:
        A share in (0, 1]; 0 if no pair was observed.

    Examples:
        >>> counts = torch.tensor([[0, 3, 1], [3, 0, 0], [1, 0, 0]])
        >>> observed_share(counts, torch.ones(3, 3, dtype=torch.bool), 4)
        0.25
    """
    seen = counts[compared & (counts >= 1)]
    return float(seen.min()) / index if len(seen) else 0.0


def remaining_candidates(scores: Tensor, counts: Tensor, candidates: Tensor, threshold: float) -> Tensor:
    """Return the candidates that are not clearly worse than the best one (FL-FDMS section 5.3).

    Client i leaves the candidates of k if max_{j in C_k} R_kj - R_ki is at least the threshold. Only observed pairs can
    be the best one, or leave.

    Args:
        scores: R, mean scores, [m, m].
        counts: N, number of rounds in which each pair was observed, [m, m].
        candidates: C, the candidates of client k in row k, bool [m, m].
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
    observed = candidates & (counts >= 1) & ~_itself(scores)
    best = torch.where(observed, scores.double(), -torch.inf).amax(-1, keepdim=True)
    return candidates & ~(observed & (best - scores.double() >= threshold))


def _itself(pairs: Tensor) -> Tensor:
    """Return the mask of the pairs of a client with itself, bool [m, m]."""
    return torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)
