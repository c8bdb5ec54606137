"""FedProto (arXiv 2105.00243): clients exchange the mean features of their classes, and keep their models.

A round of the paper (algorithm 1, neighbours in the place of its server), and what does it here:

1. local training, with features near the prototypes that came last, eq. 7       (the objective `FedProto`)
2. the features of each class are added up, eq. 3                                (`class_sums`; a second phase)
3. each client sends its means and how many samples they are of                  (the aggregation `PrototypeAverage`)
4. P_ic = sum_j s_ijc C_jc, s_ijc the share of j's samples of class c, eq. 6     (`prototype_shares`; on_mix)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["class_sums", "prototype_shares"]


def class_sums(features: Tensor, labels: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Add up the features of each class, of one client's batch or of several clients' side by side.

    Args:
        features: [..., B, d].
        labels: int64 [..., B].
        weights: of samples, [..., B]: those with 0 are padding.
        classes: C.

    Returns:
        [..., C, d]; zeros where a class has no sample.

    Examples:
        >>> features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
        >>> class_sums(features, torch.tensor([0, 2, 0, 2]), torch.tensor([1.0, 1.0, 1.0, 0.0]), 3)
        tensor([[6., 8.],
                [0., 0.],
                [3., 4.]])
    """
    of_class = labels[..., None] == torch.arange(classes, device=labels.device)
    return (of_class & (weights[..., None] > 0)).to(features.dtype).transpose(-1, -2) @ features


def prototype_shares(counts: Tensor, voters: Links, votes: Tensor) -> Tensor:
    """Return each row's share in each class's mean: its samples of the class, divided by those of all rows with a vote.

    Args:
        counts: samples of each client and class, or 1 where clients that have the class count the same, [n, C].
        voters: the rows that receivers may use.
        votes: how often each of them counts, [len(voters)].

    Returns:
        float64 [len(voters), C]; those of a receiver and a class sum to 1, or are 0 where no row has the class.

    Examples:
        >>> counts = torch.tensor([[3, 0, 0], [1, 2, 0]])
        >>> prototype_shares(counts, Links.complete(2), torch.ones(2))
        tensor([[1., 1., 0.],
                [1., 0., 0.]], dtype=torch.float64)
    """
    parts = votes.double()[:, None] * counts.double()[voters.senders]
    total = torch.zeros(voters.nodes, counts.shape[1], dtype=torch.float64).index_add_(0, voters.receivers, parts)
    return parts / total.where(total > 0, 1.0)[voters.receivers]
