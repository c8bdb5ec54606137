"""Krum and Multi-Krum: models near to many others (Blanchard et al., NeurIPS 2017, arXiv 1703.02757).

Steps of a receiver of n models if f of them may be falsified, and the code of each:

1. it needs 2 f + 2 < n, and keeps its own model otherwise                                 (`krum_needs`)
2. distances between all n models                                                          (`Neighbourhoods`)
3. score of a model: the sum of its squared distances to the n - f - 2 nearest others      (`krum_weights`)
4. Krum takes the model with the lowest score, the lowest id among equals                  (`krum_weights`, kept=1)
5. Multi-Krum takes the mean of the n - f models with the lowest scores, or of another m   (`krum_weights`, kept=m)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.functional.robust.neighbourhoods import Neighbourhoods

__all__ = ["krum_needs", "krum_weights"]


def krum_needs(adversaries: int) -> int:
    """Return the least number of models that Krum can choose from, 2 f + 3 (the paper's condition is 2 f + 2 < n).

    Args:
        adversaries: f, how many of the models may be falsified.
    """
    return 2 * adversaries + 3


def krum_weights(neighbourhoods: Neighbourhoods, adversaries: int, kept: int | None = 1) -> Tensor:
    """Weigh equally the models with the lowest scores, the sums of squared distances to the n - f - 2 nearest others.

    Args:
        neighbourhoods: distances among each receiver's n models.
        adversaries: f, how many of the n models may be falsified.
        kept: number of models to average, at most n; 1 is Krum; None: n - f. Ties go to the lower id.

    Returns:
        float64 [E]; they sum to 1 for a receiver of 2 f + 3 models or more, and are 0 otherwise.

    Examples:
        >>> from dfl_lightning.links import Links
        >>> voters = Links.of(torch.zeros(5, dtype=torch.long), torch.arange(5), 5)
        >>> at = torch.tensor([0.0, 1.0, 1.5, 2.5, 9.0])
        >>> b, a = torch.tril_indices(5, 5, offset=-1)
        >>> near = Neighbourhoods(voters, (at - at[0]).abs(), Links(b, a, 5), (at[b] - at[a]).abs())
        >>> krum_weights(near, adversaries=1).tolist()
        [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    voters = neighbourhoods.voters
    weights = torch.zeros(len(voters), dtype=torch.float64)
    for entries, squared in neighbourhoods.blocks():
        n = entries.shape[1]
        if n < krum_needs(adversaries):
            continue
        nearest = squared.sort(dim=2).values[:, :, 1 : n - adversaries - 1]  # the first is a model itself
        count = n - adversaries if kept is None else min(kept, n)
        best = nearest.sum(2).sort(dim=1, stable=True).indices[:, :count]
        weights[entries.gather(1, best)] = 1 / count
    return weights
