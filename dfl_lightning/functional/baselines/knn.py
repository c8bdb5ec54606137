"""kNN-Per (arXiv 2111.09360): the samples with the nearest stored features vote for their classes.

The paper is *Personalized Federated Learning through Local Memorization* (Marfoq, Neglia, Kameni and Vidal, ICML 2022).
Its steps, and the code of each:

1. a network is trained by federated averaging, or by any other method           (selection, aggregation, objective)
2. each client stores the features phi(x) of its own training samples            (the prediction `KNN`)
3. the k samples with the nearest features vote by exp(-distance / scale)        (`neighbour_votes`; `kernel`)
4. p = weight * votes + (1 - weight) * softmax(scores)                           (`KNN`, predict)
5. the weight: given, or the best on the client's validation data                (`best_vote_shares`; `weight`)
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["best_vote_shares", "neighbour_votes"]

BLOCK = 2**22
"""About how many distances, features of candidates and votes are in memory at a time."""


def neighbour_votes(
    queries: Tensor,
    stored: Tensor,
    labels: Tensor,
    num_classes: int,
    k: int = 10,
    scale: float = 1.0,
    kernel: Literal["squared", "euclidean"] = "squared",
) -> Tensor:
    """Compute shares of classes among the k nearest stored samples; nearer samples have larger votes.

    The vote of a sample at the Euclidean distance d is exp(-d^2 / (D scale)) with `squared`, D the number of features,
    and exp(-d / scale) with `euclidean`. Votes are computed relative to that of the nearest sample, which does not
    change the shares and prevents underflow.

    Args:
        queries: features to be classified, [..., B, D].
        stored: features of stored samples, [..., n, D], n >= 1.
        labels: classes of the stored samples, int64 [..., n].
        num_classes: C.
        k: number of samples that vote, at most n of them; ties go to the lowest index.
        scale: scale of the distances, above 0.
        kernel: `squared` or `euclidean`.

    Returns:
        [..., B, C]; each sums to 1.

    Examples:
        >>> stored = torch.tensor([[0.0, 0.0], [1.0, 1.0], [6.0**0.5, 0.0]])  # squared distances 0, 2 and 6
        >>> neighbour_votes(torch.zeros(1, 2), stored, torch.tensor([1, 0, 1]), num_classes=2)
        tensor([[0.2595, 0.7405]])
    """
    nearest = min(k, stored.shape[-2])
    numbers = queries.shape[:-2].numel() * (stored.shape[-2] + nearest * (num_classes + 4 * stored.shape[-1]))
    votes = []
    for some in queries.split(max(1, BLOCK // numbers), dim=-2):
        distances, order = _nearest(some, stored, nearest)
        if kernel == "squared":
            distances = distances.square() / stored.shape[-1]
        shares = ((distances[..., :1] - distances) / scale).exp()
        voters = labels.unsqueeze(-2).expand(*order.shape[:-1], -1).gather(-1, order)
        cast = (shares.unsqueeze(-1) * F.one_hot(voters, num_classes)).sum(-2)
        votes.append(cast / shares.sum(-1, keepdim=True))
    return torch.cat(votes, dim=-2)


def _nearest(queries: Tensor, stored: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ascending distances to the k nearest stored samples and their indices, [..., B, k] each.

    Matrix products are fast, but they round: copies of a sample would differ, and ties would not go to the lowest
    index. They only choose 2 k candidates, whose distances are computed from differences; all distances are, if the
    products cannot exclude the other samples.
    """
    candidates = _candidates(queries, stored, k) if stored.shape[-2] > 16 * k else None
    if candidates is None:
        distances = torch.cdist(queries, stored, compute_mode="donot_use_mm_for_euclid_dist")
        ascending, order = distances.sort(dim=-1, stable=True)
        return ascending[..., :k], order[..., :k]
    dims = stored.shape[-1]
    rows = stored.gather(-2, candidates.flatten(-2).unsqueeze(-1).expand(*candidates.shape[:-2], -1, dims))
    differences = queries.unsqueeze(-2) - rows.view(*candidates.shape, dims)
    ascending, order = torch.linalg.vector_norm(differences, dim=-1).sort(dim=-1, stable=True)
    return ascending[..., :k], candidates.gather(-1, order[..., :k])


def _candidates(queries: Tensor, stored: Tensor, k: int) -> Tensor | None:
    """Choose 2 k samples that contain the k nearest, ascending indices [..., B, 2 k]; None if rounding hides them."""
    lengths, own = stored.square().sum(-1).unsqueeze(-2), queries.square().sum(-1, keepdim=True)
    nearest = (lengths + own - 2 * (queries @ stored.mT)).topk(2 * k, dim=-1, largest=False)
    rounding = 4 * stored.shape[-1] * torch.finfo(stored.dtype).eps * (own + lengths.amax(-1, keepdim=True))
    apart = nearest.values[..., 2 * k - 1 :] - nearest.values[..., k - 1 : k] > 2 * rounding
    return nearest.indices.sort(dim=-1).values if bool(apart.all()) else None


def best_vote_shares(votes: Tensor, probabilities: Tensor, labels: Tensor, grid: Tensor) -> Tensor:
    """Choose the weight of the votes, mixed with the network's probabilities, that classifies most samples correctly.

    Ties go to the lowest mean negative log-likelihood, then to the lowest weight.

    Args:
        votes: shares of classes, as of `neighbour_votes`, [..., B, C].
        probabilities: class probabilities of the network, [..., B, C].
        labels: correct classes, int64 [..., B], B >= 1.
        grid: weights to choose from, ascending, [G].

    Returns:
        A weight of the grid for each leading index, [...].

    Examples:
        >>> votes, network = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])
        >>> best_vote_shares(votes, network, torch.tensor([0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor(1.)
    """
    counts, losses = [], []
    for share in grid.tolist():
        mixed = share * votes + (1 - share) * probabilities
        counts.append((mixed.argmax(-1) == labels).sum(-1))
        losses.append(-mixed.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log().mean(-1))
    correct = torch.stack(counts)
    most = correct == correct.amax(0)
    loss = torch.stack(losses).nan_to_num(nan=torch.inf).masked_fill(~most, torch.inf)
    best = most & (loss == loss.amin(0))
    return grid.to(votes)[best.int().argmax(0)]  # the first of equals
