"""FedProto (arXiv 2105.00243): clients exchange the mean features of their classes, and keep their models.

A round of the paper (algorithm 1; with its server, or with neighbours instead), and the code of each step:

1. local training, with features near the last prototypes, eq. 7                 (the objective `FedProto`)
2. the features of each class are added up, eq. 3                                (`class_sums`; a second phase)
3. each client sends its mean features and numbers of samples                    (the aggregation `PrototypeAverage`)
4. P_ic = sum_j s_ijc C_jc, s_ijc the share of j's samples of class c, eq. 6     (`prototype_shares`; on_mix)
5. a sample is of the class with the nearest prototype                           (`prototype_probabilities`)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["class_sums", "has_prototype", "prototype_probabilities", "prototype_shares"]

LEAST = 1e-30
"""Probability of a class without a prototype, above 0 so that the loss of its samples is finite."""


def class_sums(features: Tensor, labels: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Add up the features of each class, for the batch of one client or of several stacked clients.

    Args:
        features: features of the samples, [..., B, d].
        labels: classes of the samples, int64 [..., B].
        weights: weights of the samples, [..., B]; samples with weight 0 are padding and do not count.
        classes: C.

    Returns:
        Sums, [..., C, d]; zeros for a class without samples.

    Examples:
        >>> features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
        >>> class_sums(features, torch.tensor([0, 2, 0, 2]), torch.tensor([1.0, 1.0, 1.0, 0.0]), 3)
        tensor([[6., 8.],
                [0., 0.],
                [3., 4.]])
    """
    of_class = labels[..., None] == torch.arange(classes, device=labels.device)
    return (of_class & (weights[..., None] > 0)).to(features.dtype).transpose(-1, -2) @ features


def has_prototype(prototypes: Tensor) -> Tensor:
    """Tell which classes have a prototype; a row of zeros stands for a class without one.

    Args:
        prototypes: rows of prototypes, [..., d].

    Returns:
        bool [...].
    """
    return (prototypes != 0).any(-1)


def prototype_probabilities(features: Tensor, prototypes: Tensor, otherwise: Tensor) -> Tensor:
    """Return probabilities of classes by the distances of features to prototypes: softmax(-||phi - P_c||^2 / d).

    Args:
        features: phi, [..., B, d].
        prototypes: P, [..., C, d]; a class with a row of zeros has no prototype, and gets the probability 1e-30.
        otherwise: the result if no class has a prototype, [..., B, C].

    Returns:
        [..., B, C].

    Examples:
        >>> prototypes = torch.tensor([[0.0, 2.0], [2.0, 0.0], [0.0, 0.0]])
        >>> prototype_probabilities(torch.tensor([[0.0, 2.0], [1.5, 1.0]]), prototypes, torch.full((2, 3), 1 / 3))
        tensor([[9.8201e-01, 1.7986e-02, 1.0000e-30],
                [2.6894e-01, 7.3106e-01, 1.0000e-30]])
    """
    apart = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    usable = has_prototype(prototypes)
    nearness = (apart.square() / -features.shape[-1]).masked_fill(~usable[..., None, :], -torch.inf)
    return nearness.softmax(-1).clamp(min=LEAST).where(usable.any(-1)[..., None, None], otherwise)


def prototype_shares(counts: Tensor, voters: Links, votes: Tensor) -> Tensor:
    """Return each row's share in each class's mean: its samples of the class, divided by those of all rows with a vote.

    Args:
        counts: samples of each client and class, or 1 if all clients with the class count the same, [n, C].
        voters: receivers and the rows that they may use.
        votes: number of votes of each row, [E].

    Returns:
        float64 [E, C]; those of a receiver and a class sum to 1, or are 0 if no row has the class.

    Examples:
        >>> counts = torch.tensor([[3, 0, 0], [1, 2, 0]])
        >>> prototype_shares(counts, Links.complete(2), torch.ones(2))
        tensor([[1., 1., 0.],
                [1., 0., 0.]], dtype=torch.float64)
    """
    parts = votes.double()[:, None] * counts.double()[voters.senders]
    total = torch.zeros(voters.nodes, counts.shape[1], dtype=torch.float64).index_add_(0, voters.receivers, parts)
    return parts / total.where(total > 0, 1.0)[voters.receivers]
