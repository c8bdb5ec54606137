"""The geometric median of models, from their pairwise distances (Pillutla, Kakade and Harchaoui 2022).

Each step of the smoothed Weiszfeld algorithm (arXiv 1912.13445) sets

    v = sum_k beta_k w_k / sum_k beta_k,    beta_k = alpha_k / max(nu, |v - w_k|)

Since v is always such a mean, with weights lambda, its distances follow from the distances d between the models:

    |v - w_k|^2 = sum_j lambda_j d_jk^2 - 1/2 sum_jl lambda_j lambda_l d_jl^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.functional.robust.neighbourhoods import Neighbourhoods

__all__ = ["geometric_median_weights"]


def geometric_median_weights(
    neighbourhoods: Neighbourhoods, votes: Tensor, smoothing: float = 1e-6, iterations: int = 32
) -> Tensor:
    """Compute the weights of the models in their geometric median, by smoothed Weiszfeld steps from their mean.

    Args:
        neighbourhoods: distances among each receiver's models.
        votes: alpha, the number of votes of each model, [E], above 0.
        smoothing: nu, above 0: models that are nearer than nu count as if they were at the distance nu.
        iterations: steps of the algorithm, 1 or more.

    Returns:
        float64 [E]; they sum to 1 for each receiver.

    Examples:
        >>> from dfl_lightning.links import Links
        >>> voters = Links.of(torch.zeros(3, dtype=torch.long), torch.arange(3), 3)
        >>> at = torch.tensor([0.0, 1.0, 90.0])
        >>> b, a = torch.tril_indices(3, 3, offset=-1)
        >>> near = Neighbourhoods(voters, (at - at[0]).abs(), Links(b, a, 3), (at[b] - at[a]).abs())
        >>> [round(w, 3) for w in geometric_median_weights(near, torch.ones(3)).tolist()]  # on a line: the median
        [0.0, 1.0, 0.0]
    """
    weights = torch.zeros(len(neighbourhoods.voters), dtype=torch.float64)
    for entries, squared in neighbourhoods.blocks():
        alpha = votes.double()[entries]
        shares = alpha / alpha.sum(1, keepdim=True)
        for _ in range(iterations):
            to_mean = (squared @ shares[:, :, None]).squeeze(2)
            spread = (to_mean * shares).sum(1, keepdim=True) / 2
            distances = (to_mean - spread).clamp_(min=0).sqrt_()
            beta = alpha / distances.clamp_(min=smoothing)
            shares = beta / beta.sum(1, keepdim=True)
        weights[entries] = shares
    return weights
