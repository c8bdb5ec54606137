"""PACFL (Vahidian et al., arXiv 2209.10526): clients whose inputs span similar subspaces form a cluster.

Algorithm 1, and the code of each step:

1. each client: the first p left singular vectors of the inputs of each of its classes, sent once  (`class_vectors`)
2. proximity matrix from the angles between two clients' vectors                                   (`proximity`)
3. agglomerative clustering up to a threshold in degrees                                           (`clusters_below`)
4. federated averaging within each cluster                                                         (`PACFL`, on_select)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dfl_lightning.utils.thread_pool import workers

__all__ = ["class_vectors", "clusters_below", "proximity"]

Distance = Literal["angles", "trace", "entries"]


def class_vectors(inputs: Tensor, labels: Tensor, vectors: int = 3) -> Tensor:
    """Compute the first left singular vectors of the inputs of each class, side by side (PACFL, section 3.1).

    The sign of a singular vector is that with which its entry of largest absolute value is positive.

    Args:
        inputs: inputs of one client, [s, ...].
        labels: classes of the inputs, long [s].
        vectors: p, the number of vectors of each class; fewer if a class has fewer samples.

    Returns:
        float64 [d, k]: columns of length 1, orthogonal within a class.

    Examples:
        >>> class_vectors(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1]))
        tensor([[0.6000, 0.0000],
                [0.8000, 1.0000]], dtype=torch.float64)
    """
    parts = []
    for label in labels.unique().tolist():
        columns = inputs[labels == label].flatten(1).double().T
        left = torch.linalg.svd(columns, full_matrices=False).U[:, :vectors]
        largest = left.gather(0, left.abs().argmax(0, keepdim=True))
        parts.append(left * torch.ones_like(largest).where(largest >= 0, -1.0))
    return torch.cat(parts, 1) if parts else torch.zeros(inputs[0:1].numel(), 0, dtype=torch.float64)


def proximity(signatures: Sequence[Tensor], distance: Distance = "angles") -> Tensor:
    """Compute distances of clients in degrees (PACFL eq. 2 and 3).

    Args:
        signatures: vectors of each client, [d, k], from `class_vectors`; k may differ.
        distance: `angles`: the smallest principal angle between the subspaces of two clients; `trace`: the sum of the
            angles between vectors with the same index, as many as both clients have; `entries`: the smallest angle
            between any two vectors, as in the authors' script.

    Returns:
        float64 [m, m], symmetric, 0 on the diagonal.

    Examples:
        >>> x, y = torch.eye(3, dtype=torch.float64)[:, :2], torch.tensor([[1.0], [0], [1]], dtype=torch.float64)
        >>> proximity([x, y / 2**0.5])
        tensor([[ 0.0000, 45.0000],
                [45.0000,  0.0000]], dtype=torch.float64)
    """
    bases = [torch.linalg.qr(u).Q for u in signatures] if distance == "angles" else list(signatures)
    counts = torch.tensor([u.shape[1] for u in bases])
    vectors = pad_sequence([u.T for u in bases], batch_first=True)  # [m, k, d]; vectors of zeros change no angle
    degrees = torch.zeros(len(bases), len(bases), dtype=torch.float64)

    def row(i: int) -> Tensor:
        products = (vectors[:i] @ vectors[i].T).contiguous()  # [i, k, k]
        if distance == "angles":
            radians = _smallest_angles(products, bases[:i], bases[i])
        elif distance == "trace":
            both = torch.arange(products.shape[-1]) < counts[:i, None].clamp(max=counts[i])
            radians = (products.diagonal(dim1=1, dim2=2).clamp(-1, 1).arccos() * both).sum(1)
        else:
            exist = torch.arange(products.shape[-1]) < counts[:, None]
            both = exist[:i, :, None] & exist[i]
            radians = products.masked_fill(~both, -1).flatten(1).amax(1).clamp(-1, 1).arccos()
        return torch.rad2deg(radians)

    clients = range(len(bases) - 1, 0, -1)
    with workers() as pool:
        for i, values in zip(clients, pool.map(row, clients), strict=True):
            degrees[i, :i] = degrees[:i, i] = values
    return degrees


def _smallest_angles(products: Tensor, bases: Sequence[Tensor], base: Tensor) -> Tensor:
    """Compute the smallest principal angle between each of `bases` and `base`, all orthonormal, in radians, [i].

    Angles below a degree are computed from their sine, since their cosine is rounded to almost 1 (Knyazev and
    Argentati).

    Args:
        products: inner products of their vectors, [i, k, k].
        bases: [d, k] each.
        base: [d, k].
    """
    cosines = torch.linalg.svdvals(products)[:, 0].clamp(max=1)
    angles = cosines.arccos()
    for j in torch.nonzero(angles < math.radians(1)).flatten().tolist():
        wide, narrow = (bases[j], base) if bases[j].shape[1] >= base.shape[1] else (base, bases[j])
        angles[j] = torch.linalg.svdvals(narrow - wide @ (wide.T @ narrow))[-1].clamp(max=1).arcsin()
    return angles


def clusters_below(distances: Tensor, threshold: float, method: Literal["average", "weighted"] = "average") -> Tensor:
    """Join agglomerative clusters whose distance is at most the threshold, long [m], numbered by their first clients.

    Args:
        distances: distances of clients, [m, m], symmetric with a diagonal of 0.
        threshold: greatest distance of two clusters that are joined.
        method: distance of two clusters: `average`: the mean over pairs of clients; `weighted`: the mean of the
            distances to the two clusters that one of them was joined from, which the authors' script calls average.

    Examples:
        >>> clusters_below(torch.tensor([[0.0, 9, 1], [9, 0, 9], [1, 9, 0]]), 5.0)
        tensor([0, 1, 0])
    """
    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.long)
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, and only this method needs it
    from scipy.spatial.distance import squareform

    joined = linkage(squareform(distances.double().numpy(), checks=False), method=method)
    numbers = fcluster(joined, t=threshold, criterion="distance")
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse])
