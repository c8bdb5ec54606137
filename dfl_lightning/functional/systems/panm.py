"""PANM (arXiv 2203.12285): how similar two clients are, and which of a few clients are of the client's own cluster.

The paper is *Mining Latent Relationships among Clients: Peer-to-peer Federated Learning with Adaptive Neighbor
Matching*. Its round (algorithms 1 to 3), and what does it here:

1. local training                                                                (the objective)
2. stage one: l random others and the present neighbours are compared            (`PANM`, on_propose; `l`, `stage_one`)
3. similarity, from losses (eq. 3) or updates (eq. 6)                            (`loss_similarity`,
                                                                                 `gradient_similarity`; `metric`)
4. the k most similar become the neighbours (CNI)                                (`PANM`, on_select; `k`)
5. stage two, every tau rounds: l neighbours and l strangers are compared, and   (`same_cluster`,
   a mixture of two Gaussians tells who is of the own cluster (HNM)              `rematched_neighbours`; `matching`)
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
_VARIANCE_SHARE = 0.01  # of the variance of all similarities: what a component of one client has at least
_ROUNDING = 1e-9  # similarities that differ by less than this share of the largest one are equal


def loss_similarity(losses: Tensor) -> Tensor:
    """Compute similarities from losses: s_ij = 1 / F_i(w_j) (PANM eq. 3).

    Args:
        losses: mean loss of j's model on i's training data, >= 0, any shape; infinity is as unlike as can be, NaN is
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
        updates: cosine of what i and j changed in this round's local training (eq. 4), any shape.
        accumulated: cosine of what they changed since their first models (eq. 5), same shape.
        alpha: share of the former, in [0, 1].

    Returns:
        float64, same shape; NaN where either is.

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
    """Return which of a few neighbours and a few strangers are of the receiver's cluster (PANM eq. 14 to 17).

    Each receiver fits a mixture of two Gaussians to its similarities by hard expectation maximization: mean, variance
    and share of each component from the present labels; then every client goes to the component where it is likelier,
    to the first one when in doubt; until no label changes.

    A component's variance is at least a hundredth of the variance of all its receiver's similarities, so that a single
    client is a component too. If a component empties, or all similarities are equal, there is one cluster only.

    Args:
        similarity: s_ij, [E], finite.
        links: whom each receiver compared: neighbours S_i and strangers C_i.
        sampled: which of these are neighbours, bool [E].
        matching: `oriented`: the neighbours start as the first component, and the component with the larger mean in
            the end is the receiver's cluster; `unoriented`: it is the first component, whatever its mean; `literal`:
            the strangers start as the first component, which is taken, as the labels above eq. 15 are printed.
        iterations: after so many rounds of labels the last ones count.

    Returns:
        Which of those compared are of the receiver's cluster H_i, bool [E].

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
        neighbours: N_i of each receiver.
        sampled: the neighbours that were compared, S_i.
        matched: those compared that are of the receiver's cluster, H_i.

    Returns:
        The new lists; one that would end empty stays as it was.

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
    """Similarities above the receiver's lowest one, float64 [E]; all 0 where they differ by rounding only."""
    y = similarity.double()
    above = y + links.highest(-y)[links.receivers]
    equal = links.highest(above) <= _ROUNDING * links.highest(y.abs())
    return above.masked_fill(equal[links.receivers], 0)


def _moments(y: Tensor, links: Links, component: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a component's similarities, [n] each; 0 where it is empty."""
    size = links.sum(component).clamp(min=1)
    mean = links.sum(torch.where(component, y, 0.0)) / size
    return mean, links.sum(torch.where(component, (y - mean[links.receivers]) ** 2, 0.0)) / size


def _log_density(y: Tensor, links: Links, component: Tensor, floor: Tensor) -> Tensor:
    """log(beta phi(y)) under the Gaussian of a component, up to a constant, [E]."""
    mean, variance = _moments(y, links, component)
    variance = torch.maximum(variance, floor)
    share = links.sum(component).double() / links.count.clamp(min=1)
    constant = share.log() - variance.log() / 2
    return constant[links.receivers] - (y - mean[links.receivers]) ** 2 / (2 * variance)[links.receivers]
