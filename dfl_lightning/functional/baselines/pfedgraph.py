"""pFedGraph (Ye et al., ICML 2023): a collaboration graph from similarities and numbers of samples.

Its round (algorithm 1), and the code of each step:

1. clients train on f(w) - lambda <w, r> / ||w||, r the last mixture of directions     (the objective `PFedGraph`)
2. S_ij = -cos(w_i - w0, w_j - w0), w0 the first model of all                          (`SimilarityWeighted`)
3. row i of the graph: the point of the simplex nearest to p - S_i / (2 alpha)         (`graph_rows`)
4. each client continues with the average by its row                                   (the aggregation, on_mix)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["graph_rows", "nearest_on_simplex"]


def nearest_on_simplex(points: Tensor, links: Links) -> Tensor:
    """Project each receiver's numbers on the probability simplex, exactly, in the Euclidean norm.

    Each step subtracts the same number from all remaining entries so that they sum to 1, and removes entries below 0,
    until there are none (Michelot 1986). It takes at most as many steps as a receiver has links, and few in practice.

    Args:
        points: a finite number for each link, [E].
        links: links that say which numbers belong to which receiver.

    Returns:
        float64 [E], 0 or more; they sum to 1 for each receiver that has links.

    Examples:
        >>> links = Links.from_mask(torch.ones(2, 3, dtype=torch.bool))
        >>> nearest_on_simplex(torch.tensor([0.2, 0.5, 0.3, 2.0, 0.0, 1.5]), links)
        tensor([0.2000, 0.5000, 0.3000, 0.7500, 0.0000, 0.2500], dtype=torch.float64)
    """
    points = points.double()
    taken = torch.ones(len(links), dtype=torch.bool)
    while True:
        excess = (links.sum(points.masked_fill(~taken, 0)) - 1) / links.sum(taken).clamp(min=1)
        left = points - excess[links.receivers]
        kept = taken & (left > 0)
        if torch.equal(kept, taken):
            return left.masked_fill(~taken, 0)
        taken = kept


def graph_rows(similarity: Tensor, shares: Tensor, links: Links, alpha: float = 0.8) -> Tensor:
    """Compute weights of the models that each receiver averages (pFedGraph eq. 4, solved exactly).

    The weights minimise `sum_j x_j S_j + alpha ||x - p||^2` over the simplex, with S = -cosine, so they are the point
    of the simplex nearest to p + cosine / (2 alpha).

    Args:
        similarity: cosine of the changes of receiver and sender since the start, [E]; 1 for a receiver with itself.
        shares: numbers of samples, [E]; p is their share for each receiver.
        links: links from each receiver to its senders, itself among them.
        alpha: weight of the shares of samples, above 0.

    Returns:
        float64 [E]; they sum to 1 for each receiver.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> graph_rows(torch.tensor([1.0, 0.8, -0.5]), torch.tensor([10, 10, 20]), links)
        tensor([0.5625, 0.4375, 0.0000], dtype=torch.float64)
    """
    p = shares.double() / links.sum(shares.double())[links.receivers]
    return nearest_on_simplex(p + similarity.double() / (2 * alpha), links)
