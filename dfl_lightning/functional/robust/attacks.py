"""What colluding adversaries send ("A little is enough", Baruch, Baruch and Goldberg, NeurIPS 2019, arXiv 1902.06635).

1. mean and standard deviation of each parameter, over the adversaries; send mean - z * std   -- `shifted_means`
2. the z of which the paper expects that it is not noticed                                    -- `hidden_deviations`
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

__all__ = ["hidden_deviations", "shifted_means"]


def shifted_means(rows: Tensor, z: float) -> Tensor:
    """Compute the mean of each column less z standard deviations, those of the rows as a population.

    Args:
        rows: [..., rows, columns], one row or more; of one row the deviation is 0.
        z: standard deviations.

    Returns:
        [..., columns].

    Examples:
        >>> shifted_means(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), z=1.5)
        tensor([0.5000, 0.0000])
        >>> shifted_means(torch.tensor([[1.0, 2.0]]), z=1.5)
        tensor([1., 2.])
    """
    spread, mean = torch.var_mean(rows, dim=-2, correction=0)
    return mean - z * spread.sqrt()


def hidden_deviations(clients: int, adversaries: int) -> float:
    """Compute by how many standard deviations adversaries can be off while enough honest clients are farther off.

    s = floor(n / 2 + 1) - m honest clients must be farther from the mean; with normal parameters that is expected up to
    the z of Phi(z) = (n - m - s) / (n - m).

    Args:
        clients: n.
        adversaries: m, fewer than n.

    Returns:
        z; infinity where the adversaries are a majority, not above 0 where they are too few.

    Examples:
        >>> round(hidden_deviations(50, 24), 2)
        1.43
    """
    supporters = clients // 2 + 1 - adversaries
    if supporters <= 0:
        return float("inf")
    return NormalDist().inv_cdf(1 - supporters / (clients - adversaries))
