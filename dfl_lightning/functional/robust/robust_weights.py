"""Weights that bound the influence of a wrong model, from its distance to the receiver's own.

ClippedGossip (He, Karimireddy and Jaggi 2022, arXiv 2202.01545):

1. weights W of the graph                          -- `metropolis_weights`, in `ClippedGossip.on_weigh`
2. tau_i: how far a neighbour may move client i    -- `clipping_radii`
3. x_i + sum_j W_ij min(1, tau_i / |x_j - x_i|) (x_j - x_i)
                                                   -- `clipped_weights`

BALANCE (Fang et al., CCS 2024, arXiv 2406.10416), algorithm 1:

1. accept j where |w_i - w_j| <= gamma exp(-kappa t / T) |w_i|
                                                   -- `accepted_models`
2. w_i = alpha w_i + (1 - alpha) mean of the accepted
                                                   -- `balanced_weights`
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["accepted_models", "balanced_weights", "clipped_weights", "clipping_radii"]


def clipping_radii(distances: Tensor, voters: Links, outliers: int) -> Tensor:
    """Compute each receiver's clipping radius: its distance to the farthest neighbour after the outliers.

    Args:
        distances: distances of rows from the receiver, 0 or more, [E]; NaN: unknown. A receiver's own row does not
            count.
        voters: receivers and the rows that they may mix.
        outliers: how many of the farthest rows are outliers, 0 or more; if there are not more rows than that, the
            radius is the distance of the nearest one.

    Returns:
        float64 [n]; 0 for a receiver without neighbours.

    Examples:
        >>> voters = Links.of(torch.zeros(4, dtype=torch.long), torch.arange(4), 4)
        >>> clipping_radii(torch.tensor([0.0, 3.0, 9.0, 2.0]), voters, outliers=1)[0]
        tensor(3., dtype=torch.float64)
    """
    foreign = distances.double().masked_fill(voters.receivers == voters.senders, torch.nan)
    farthest = voters.top(foreign, outliers + 1)
    nearest_of_them = -voters.highest(torch.where(farthest, -foreign, -torch.inf))
    return torch.where(nearest_of_them.isfinite(), nearest_of_them, 0.0)


def clipped_weights(weights: Tensor, distances: Tensor, voters: Links, radii: Tensor) -> Tensor:
    """Scale weights by min(1, radius / distance), and give the rest to the receiver's own row.

    Args:
        weights: weights of averages, 0 or more, [E]; they sum to 1 for a receiver, or are all 0.
        distances: distances of rows from the receiver, 0 or more, [E].
        voters: receivers and the rows that they may mix; among these the own row of every receiver with weights.
        radii: radius of each receiver, [n].

    Returns:
        float64 [E]; their sums for each receiver are unchanged.

    Examples:
        >>> voters = Links.of(torch.zeros(3, dtype=torch.long), torch.arange(3), 3)
        >>> clipped_weights(torch.full((3,), 1 / 3), torch.tensor([0.0, 1.0, 10.0]), voters, torch.ones(3))
        tensor([0.6333, 0.3333, 0.0333], dtype=torch.float64)
    """
    weights, distances = weights.double(), distances.double()
    own = voters.receivers == voters.senders
    near = distances <= radii[voters.receivers]
    kept = torch.where(near, weights, weights * radii[voters.receivers] / distances).masked_fill(
        own | (weights == 0), 0
    )
    return torch.where(own, (voters.sum(weights) - voters.sum(kept))[voters.receivers], kept)


def accepted_models(
    distances: Tensor, lengths: Tensor, voters: Links, gamma: float, kappa: float, progress: float
) -> Tensor:
    """Tell which rows are within the radius of BALANCE: |w_i - w_j| <= gamma exp(-kappa t / T) |w_i| (eq. 3).

    Args:
        distances: distances of rows from the receiver, [E]; NaN: unknown, not accepted.
        lengths: Euclidean norms of the receivers' own models, [n].
        voters: receivers and the rows that they may mix.
        gamma: distance that is accepted in the first round, in units of the own norm.
        kappa: rate at which the accepted distance shrinks.
        progress: t / T, the share of the run's rounds that are over, 0 to 1 (the paper's lambda(t)).

    Returns:
        bool [E]; False for own rows.
    """
    limit = gamma * math.exp(-kappa * progress) * lengths.double()
    return (distances.double() <= limit[voters.receivers]) & (voters.receivers != voters.senders)


def balanced_weights(votes: Tensor, accepted: Tensor, voters: Links, alpha: float) -> Tensor:
    """Weigh the own model by alpha and the mean of the accepted ones by 1 - alpha; the own by 1 if none is accepted.

    Args:
        votes: number of votes of each row, 0 or more, [E].
        accepted: mask of the accepted rows, bool [E].
        voters: receivers and the rows that they may mix; among these the own row of every receiver with votes.
        alpha: weight of the own model, 0 to 1.

    Returns:
        float64 [E]; they sum to 1 for each receiver, or are 0 without votes.

    Examples:
        >>> voters = Links.of(torch.zeros(3, dtype=torch.long), torch.arange(3), 3)
        >>> balanced_weights(torch.ones(3), torch.tensor([False, True, False]), voters, alpha=0.5)
        tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    counted = votes.double() * accepted
    total = voters.sum(counted)
    kept = torch.full_like(total, alpha).where(total > 0, 1.0) * voters.any(votes > 0)
    shares = (1 - alpha) * counted / torch.where(total > 0, total, 1.0)[voters.receivers]
    return torch.where(voters.receivers == voters.senders, kept[voters.receivers], shares)
