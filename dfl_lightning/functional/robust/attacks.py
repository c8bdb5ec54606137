"""The attack "A little is enough" of colluding adversaries (Baruch et al., NeurIPS 2019, arXiv 1902.06635).

1. mean and standard deviation of each parameter, over the adversaries; send mean - z * std   -- `shifted_means`
2. the z that the paper expects to stay unnoticed                                             -- `hidden_deviations`
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

__all__ = ["hidden_deviations", "shifted_means"]


def shifted_means(rows: Tensor, z: float) -> Tensor:
    """Compute the mean of each column minus z standard deviations of the rows as a population.

    Args:
        rows: models of the adversaries, [..., rows, columns], one row or more; one row has the deviation 0.
        z: number of standard deviations.

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
    """Compute the largest z with which adversaries are nearer to the mean than enough honest clients.

    Phi(z) = (n - m - s) / (n - m): s = floor(n / 2 + 1) - m honest clients are then expected to be farther from the
    mean, if their parameters are normal.

    Args:
        clients: n, the number of clients.
        adversaries: m, fewer than n.

    Returns:
        z; infinity if the adversaries are a majority, not above 0 if they are too few.

    Examples:
        >>> round(hidden_deviations(50, 24), 2)
        1.43
    """
    supporters = clients // 2 + 1 - adversaries
    if supporters <= 0:
        return float("inf")
    return NormalDist().inv_cdf(1 - supporters / (clients - adversaries))
