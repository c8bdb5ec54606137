"""PANM (arXiv 2203.12285): similarities of clients, and the members of the client's cluster among a few of them.

The paper is *Mining Latent Relationships among Clients: Peer-to-peer Federated Learning with Adaptive Neighbor
Matching*. Its round (algorithms 1 to 3), and the code of each step:

1. local training                                                                (the objective)
2. stage one: l random others and the present neighbours are compared            (`PANM`, on_propose; `l`, `stage_one`)
3. similarity, from losses (eq. 3) or updates (eq. 6)                            (`loss_similarity`,
                                                                                 `gradient_similarity`; `metric`)
4. the k most similar become the neighbours (CNI)                                (`PANM`, on_select; `k`)
5. stage two, every tau rounds: l neighbours and l strangers are compared, and   (`same_cluster`,
   a mixture of two Gaussians decides which are in the own cluster (HNM)         `rematched_neighbours`; `matching`)
6. the client averages its own and k neighbours' models                          (the aggregation, on_mix)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = [
    "gradient_similarity",
    "loss_similarity",
    "rematched_neighbours",
    "same_cluster",
]

Matching = Literal["oriented", "unoriented", "literal"]

_LEAST_LOSS = 1e-12
_LEAST_VARIANCE = 1e-300
_VARIANCE_SHARE = 0.01  # least variance of a component, as a share of the variance of all similarities
_ROUNDING = 1e-9  # similarities that differ by less than this share of the largest one count as equal


def loss_similarity(losses: Tensor) -> Tensor:
    """Compute similarities from losses: s_ij = 1 / F_i(w_j) (PANM eq. 3).

    Args:
        losses: mean loss of j's model on i's training data, >= 0, any shape; infinity gives the similarity 0, NaN is
            unknown.

    Returns:
        float64, same shape, at most 1e12; NaN stays NaN.

    Examples:
        >>> loss_similarity(torch.tensor([0.5, 2.0, torch.inf]))
        tensor([2.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return 1 / losses.double().clamp(min=_LEAST_LOSS)


def gradient_similarity(updates: Tensor, accumulated: Tensor, alpha: float = 0.5) -> Tensor:
    """Compute similarities from two cosines: s_ij = alpha cos(theta1) + (1 - alpha) cos(theta2) (PANM eq. 4 to 6).

    Args:
        updates: cosine of the updates of i and j in this round's local training (eq. 4), any shape.
        accumulated: cosine of their changes since the first models (eq. 5), same shape.
        alpha: weight of the first cosine, in [0, 1].

    Returns:
        float64, same shape; NaN if either cosine is NaN.

    Examples:
        >>> gradient_similarity(torch.tensor(0.5), torch.tensor(0.774597), alpha=0.5)
        tensor(0.6373, dtype=torch.float64)
    """
    return alpha * updates.double() + (1 - alpha) * accumulated.double()


def same_cluster(
    similarity: Tensor,
    links: Links,
    sampled: Tensor,
    matching: Matching = "oriented",
    iterations: int = 100,
) -> Tensor:
    """Return which of the compared clients are in the receiver's cluster (PANM eq. 14 to 17).

    Each receiver fits a mixture of two Gaussians to its similarities by hard expectation maximization: it computes
    mean, variance and share of each component from the present labels, then assigns each client to the component with
    the higher likelihood, to the first one if they are equal, and repeats both until no label changes.

    A component's variance is at least a hundredth of the variance of all the receiver's similarities, so that a single
    client can be a component. If a component becomes empty, or all similarities are equal, there is only one cluster.

    Args:
        similarity: s_ij, [E], finite.
        links: links to the clients that each receiver compared: neighbours S_i and strangers C_i.
        sampled: mask of the neighbours among these, bool [E].
        matching: `oriented`: the neighbours start as the first component, and the component with the larger mean in
            the end is the receiver's cluster; `unoriented`: the first component is, whatever its mean; `literal`: the
            strangers start as the first component, which is the cluster, as the labels above eq. 15 are printed.
        iterations: greatest number of assignments.

    Returns:
        Mask of the clients in the receiver's cluster H_i, bool [E].

    Examples:
        >>> similarity = torch.tensor([0.80, 0.75, 0.82, 0.20, 0.79, 0.15, 0.10, 0.77])
        >>> links = Links.from_mask(torch.ones(1, 8, dtype=torch.bool))  # one receiver, eight senders
        >>> same_cluster(similarity, links, sampled=torch.arange(8) < 4)
        tensor([ True,  True,  True, False,  True, False, False,  True])
    """
    y = _from_the_lowest(similarity, links)
    floor = (_VARIANCE_SHARE * _moments(y, links, torch.ones_like(sampled))[1]).clamp(min=_LEAST_VARIANCE)
    first = ~sampled if matching == "literal" else sampled  # the labels: bool, the first component
    one_cluster = links.highest(y) == 0
    for _ in range(iterations):
        one_cluster |= ~links.any(first) | ~links.any(~first)
        scores = [_log_density(y, links, component, floor) for component in (first, ~first)]
        labels = torch.where(one_cluster[links.receivers], first, scores[0] >= scores[1])
        if torch.equal(labels, first):
            break
        first = labels
    one_cluster |= ~links.any(first) | ~links.any(~first)
    if matching == "oriented":
        swapped = _moments(y, links, first)[0] < _moments(y, links, ~first)[0]
        first = first ^ swapped[links.receivers]
    return first | one_cluster[links.receivers]


def rematched_neighbours(neighbours: Links, sampled: Links, matched: Links) -> Links:
    """Return the neighbour lists after a matching, (N_i without S_i) and H_i (PANM eq. 18).

    Args:
        neighbours: N_i, the list of each receiver.
        sampled: S_i, the neighbours that were compared.
        matched: H_i, the compared clients that are in the receiver's cluster.

    Returns:
        The new lists; a list that would become empty stays as it was.

    Examples:
        >>> neighbours = Links.of(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 0, 2]), nodes=4)
        >>> sampled = Links.of(torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2]), nodes=4)
        >>> matched = Links.of(torch.tensor([0]), torch.tensor([3]), nodes=4)
        >>> updated = rematched_neighbours(neighbours, sampled, matched)
        >>> [updated.heard_by(receiver).tolist() for receiver in range(4)]
        [[2, 3], [0, 2], [], []]
    """
    updated = neighbours.difference(sampled).union(matched)
    return updated.union(neighbours.between(receivers=updated.count == 0))


def _from_the_lowest(similarity: Tensor, links: Links) -> Tensor:
    """Subtract the receiver's lowest similarity, float64 [E]; return 0 if all differ only by rounding."""
    y = similarity.double()
    above = y + links.highest(-y)[links.receivers]
    equal = links.highest(above) <= _ROUNDING * links.highest(y.abs())
    return above.masked_fill(equal[links.receivers], 0)


def _moments(y: Tensor, links: Links, component: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of a component's similarities, [n] each; 0 for an empty component."""
    size = links.sum(component).clamp(min=1)
    mean = links.sum(torch.where(component, y, 0.0)) / size
    return mean, links.sum(torch.where(component, (y - mean[links.receivers]) ** 2, 0.0)) / size


def _log_density(y: Tensor, links: Links, component: Tensor, floor: Tensor) -> Tensor:
    """Compute log(beta phi(y)) of a component, its share beta times its Gaussian density, up to a constant, [E]."""
    mean, variance = _moments(y, links, component)
    variance = torch.maximum(variance, floor)
    share = links.sum(component).double() / links.count.clamp(min=1)
    constant = share.log() - variance.log() / 2
    return constant[links.receivers] - (y - mean[links.receivers]) ** 2 / (2 * variance)[links.receivers]
