"""PANM (arXiv 2203.12285): how similar two clients are, and which of a few clients are of the client's own cluster.

The paper is *Mining Latent Relationships among Clients: Peer-to-peer Federated Learning with Adaptive Neighbor
Matching*. Row i is the receiver, column j the sender.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "gradient_similarity",
    "loss_similarity",
    "rematched_neighbours",
    "same_cluster",
]

Matching = Literal["oriented", "unoriented", "literal"]

_LEAST_LOSS = 1e-12
_LEAST_VARIANCE = 1e-300
_VARIANCE_SHARE = 0.01  # of the variance of all similarities: what a component of one client has at least
_ROUNDING = 1e-9  # similarities that differ by less than this share of the largest one are equal


def loss_similarity(losses: Tensor) -> Tensor:
    """Similarity from losses: s_ij = 1 / F_i(w_j) (PANM eq. 3).

    Args:
        losses: mean loss of j's model on i's training data, >= 0, any shape; infinity is as unlike as can be, NaN is
            unknown.

    Returns:
        float64, same shape, at most 1e12; NaN stays NaN.

    Example:
        >>> loss_similarity(torch.tensor([0.5, 2.0, torch.inf]))
        tensor([2.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return 1 / losses.double().clamp(min=_LEAST_LOSS)


def gradient_similarity(updates: Tensor, accumulated: Tensor, alpha: float = 0.5) -> Tensor:
    """Similarity from two cosines: s_ij = alpha cos(theta1) + (1 - alpha) cos(theta2) (PANM eq. 4 to 6).

    Args:
        updates: cosine of what i and j changed in this round's local training (eq. 4), any shape.
        accumulated: cosine of what they changed since their first models (eq. 5), same shape.
        alpha: share of the former, in [0, 1].

    Returns:
        float64, same shape; NaN where either is.

    Example:
        >>> gradient_similarity(torch.tensor(0.5), torch.tensor(0.774597), alpha=0.5)
        tensor(0.6373, dtype=torch.float64)
    """
    return alpha * updates.double() + (1 - alpha) * accumulated.double()


def same_cluster(
    similarity: Tensor,
    sampled: Tensor,
    candidates: Tensor,
    matching: Matching = "oriented",
    iterations: int = 100,
) -> Tensor:
    """Which of a few neighbours and a few strangers are of the receiver's cluster (PANM eq. 14 to 17).

    Each receiver fits a mixture of two Gaussians to its similarities by hard expectation maximization: mean, variance
    and share of each component from the present labels; then every client goes to the component where it is likelier,
    to the first one when in doubt; until no label changes.

    A component's variance is at least a hundredth of the variance of all its receiver's similarities, so that a single
    client is a component too. If a component empties, or all similarities are equal, there is one cluster only.

    Args:
        similarity: s_ij, [r, n]; read only for those compared, and finite there.
        sampled: neighbours that were compared, S_i, bool [r, n].
        candidates: strangers that were compared, C_i, bool [r, n]; disjoint from the neighbours.
        matching: `oriented`: the neighbours start as the first component, and the component with the larger mean in
            the end is the receiver's cluster; `unoriented`: it is the first component, whatever its mean; `literal`:
            the strangers start as the first component, which is taken, as the labels above eq. 15 are printed.
        iterations: after so many rounds of labels the last ones count.

    Returns:
        The receiver's cluster H_i, bool [r, n], within `sampled | candidates`.

    Example:
        >>> similarity = torch.tensor([[0.80, 0.75, 0.82, 0.20, 0.79, 0.15, 0.10, 0.77]])
        >>> sampled = torch.tensor([[True, True, True, True, False, False, False, False]])
        >>> same_cluster(similarity, sampled, ~sampled)
        tensor([[ True,  True,  True, False,  True, False, False,  True]])
    """
    seen = sampled | candidates
    y = _from_the_lowest(similarity, seen)
    spread = _moments(y, seen)[1].clamp(min=0)
    floor = (_VARIANCE_SHARE * spread).clamp(min=_LEAST_VARIANCE)
    first = candidates if matching == "literal" else sampled  # the labels: bool, the first component
    one_cluster = y.amax(1) == 0
    for _ in range(iterations):
        one_cluster |= ~first.any(1) | ~(seen & ~first).any(1)
        scores = [_log_density(y, component, seen, floor) for component in (first, seen & ~first)]
        labels = torch.where(one_cluster[:, None], first, seen & (scores[0] >= scores[1]))
        if torch.equal(labels, first):
            break
        first = labels
    second = seen & ~first
    one_cluster |= ~first.any(1) | ~second.any(1)
    if matching == "oriented":
        swapped = _moments(y, first)[0] < _moments(y, second)[0]
        first = torch.where(swapped[:, None], second, first)
    return torch.where(one_cluster[:, None], seen, first)


def rematched_neighbours(neighbours: Tensor, sampled: Tensor, matched: Tensor) -> Tensor:
    """The neighbour list after a matching, (N_i without S_i) and H_i (PANM eq. 18).

    Args:
        neighbours: N_i, bool [r, n].
        sampled: the neighbours that were compared, S_i, bool [r, n].
        matched: those of them that are of the receiver's cluster, H_i, bool [r, n].

    Returns:
        bool [r, n]; a list that would end empty stays as it was.

    Example:
        >>> neighbours = torch.tensor([[True, True, False, False], [True, True, False, False]])
        >>> sampled = torch.tensor([[True, False, False, False], [True, True, False, False]])
        >>> matched = torch.tensor([[False, False, True, False], [False, False, False, False]])
        >>> rematched_neighbours(neighbours, sampled, matched)
        tensor([[False,  True,  True, False],
                [ True,  True, False, False]])
    """
    updated = (neighbours & ~sampled) | matched
    return torch.where(updated.any(1, keepdim=True), updated, neighbours)


def _from_the_lowest(similarity: Tensor, seen: Tensor) -> Tensor:
    """Similarities above the receiver's lowest one, 0 for those not seen; all 0 where they differ by rounding only."""
    y = similarity.double()
    lowest = y.masked_fill(~seen, torch.inf).amin(1, keepdim=True)
    above = torch.where(seen, y - lowest, 0.0)
    largest = y.masked_fill(~seen, 0).abs().amax(1, keepdim=True)
    return torch.where(above.amax(1, keepdim=True) <= _ROUNDING * largest, 0.0, above)


def _moments(y: Tensor, component: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a component's similarities, [r] each; 0 where it is empty."""
    size = component.sum(1).clamp(min=1)
    mean = torch.where(component, y, 0.0).sum(1) / size
    return mean, torch.where(component, (y - mean[:, None]) ** 2, 0.0).sum(1) / size


def _log_density(y: Tensor, component: Tensor, seen: Tensor, floor: Tensor) -> Tensor:
    """log(beta phi(y)) under the Gaussian of a component, up to a constant, [r, n]."""
    mean, variance = _moments(y, component)
    variance = torch.maximum(variance, floor)[:, None]
    share = component.sum(1, keepdim=True).double() / seen.sum(1, keepdim=True).clamp(min=1)
    return share.log() - variance.log() / 2 - (y - mean[:, None]) ** 2 / (2 * variance)
