"""kNN-Per (arXiv 2111.09360): the labels of the nearest stored features vote for classes.

The paper is *Personalized Federated Learning through Local Memorization* (Marfoq, Neglia, Kameni and Vidal, ICML 2022).
What it does, and what does it here:

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
"""Numbers of distances and votes that are in memory at a time, about."""


def neighbour_votes(
    queries: Tensor,
    stored: Tensor,
    labels: Tensor,
    num_classes: int,
    k: int = 10,
    scale: float = 1.0,
    kernel: Literal["squared", "euclidean"] = "squared",
) -> Tensor:
    """Compute shares of classes among the k nearest stored features; a nearer one has a larger vote.

    The vote of a feature at the Euclidean distance d is exp(-d^2 / (D scale)) with `squared`, D the number of features,
    and exp(-d / scale) with `euclidean`. Votes are relative to that of the nearest one, which leaves the shares as they
    are and does not underflow, however far all of them are.

    Args:
        queries: features to be classified, [..., B, D].
        stored: features with known classes, [..., n, D], n >= 1.
        labels: their classes, int64 [..., n].
        num_classes: C.
        k: how many vote; all of them where there are not more. Of equally far ones those with the lowest index.
        scale: above 0.
        kernel: `squared` or `euclidean`.

    Returns:
        [..., B, C]; each sums to 1.

    Examples:
        >>> stored = torch.tensor([[0.0, 0.0], [1.0, 1.0], [6.0**0.5, 0.0]])  # squared distances 0, 2 and 6
        >>> neighbour_votes(torch.zeros(1, 2), stored, torch.tensor([1, 0, 1]), num_classes=2)
        tensor([[0.2595, 0.7405]])
    """
    nearest = min(k, stored.shape[-2])
    numbers = queries.shape[:-2].numel() * (stored.shape[-2] + nearest * num_classes)
    votes = []
    for some in queries.split(max(1, BLOCK // numbers), dim=-2):
        # not by products of matrices: rounding would set copies of a sample apart, whose order is that of their index
        distances = torch.cdist(some, stored, compute_mode="donot_use_mm_for_euclid_dist")
        if kernel == "squared":
            distances = distances.square() / stored.shape[-1]
        sorted_ones, places = distances.sort(dim=-1, stable=True)
        shares = ((sorted_ones[..., :1] - sorted_ones[..., :nearest]) / scale).exp()
        voters = labels.unsqueeze(-2).expand_as(places).gather(-1, places[..., :nearest])
        cast = (shares.unsqueeze(-1) * F.one_hot(voters, num_classes)).sum(-2)
        votes.append(cast / shares.sum(-1, keepdim=True))
    return torch.cat(votes, dim=-2)


def best_vote_shares(votes: Tensor, probabilities: Tensor, labels: Tensor, grid: Tensor) -> Tensor:
    """Compute the share of the votes, beside the network's probabilities, that answers most samples rightly.

    Of equals the one with the lowest mean negative log-likelihood, then the lowest one.

    Args:
        votes: [..., B, C].
        probabilities: of the network, [..., B, C].
        labels: right answers, int64 [..., B], B >= 1.
        grid: shares to choose from, ascending, [G].

    Returns:
        [...].

    Examples:
        >>> votes, network = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])
        >>> best_vote_shares(votes, network, torch.tensor([0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor(1.)
    """
    right, losses = [], []
    for share in grid.tolist():
        mixed = share * votes + (1 - share) * probabilities
        right.append((mixed.argmax(-1) == labels).sum(-1))
        losses.append(-mixed.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log().mean(-1))
    answered = torch.stack(right)
    most = answered == answered.amax(0)
    loss = torch.stack(losses).nan_to_num(nan=torch.inf).masked_fill(~most, torch.inf)
    best = most & (loss == loss.amin(0))
    return grid.to(votes)[best.int().argmax(0)]  # the first of equals
