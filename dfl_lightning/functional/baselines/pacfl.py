"""PACFL (Vahidian et al., arXiv 2209.10526): clients that span similar subspaces form a cluster.

Algorithm 1, and what does it here:

1. each client: the first p left singular vectors of the inputs of each of its classes, sent once  (`class_vectors`)
2. proximity matrix from the angles between two clients' vectors                                   (`proximity`)
3. agglomerative clustering up to a threshold in degrees                                           (`clusters_below`)
4. federated averaging within each cluster                                                         (`PACFL`, on_select)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["class_vectors", "clusters_below", "proximity"]

Distance = Literal["angles", "trace", "entries"]


def class_vectors(inputs: Tensor, labels: Tensor, vectors: int = 3) -> Tensor:
    """Compute the first left singular vectors of the inputs of each class, side by side (PACFL, section 3.1).

    Of a singular vector and its negative, the one whose entry of largest absolute value is positive is taken.

    Args:
        inputs: of one client, [s, ...].
        labels: their classes, long [s].
        vectors: p, of each class; fewer where a class has fewer samples.

    Returns:
        float64 [d, k]: columns of length 1, orthogonal within a class.

    Examples:
        >>> class_vectors(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1]))
        tensor([[0.6000, 0.0000],
                [0.8000, 1.0000]], dtype=torch.float64)
    """
    found = []
    for label in labels.unique().tolist():
        columns = inputs[labels == label].flatten(1).double().T
        left = torch.linalg.svd(columns, full_matrices=False).U[:, :vectors]
        largest = left.gather(0, left.abs().argmax(0, keepdim=True))
        found.append(left * torch.ones_like(largest).where(largest >= 0, -1.0))
    return torch.cat(found, 1) if found else torch.zeros(inputs[0:1].numel(), 0, dtype=torch.float64)


def proximity(signatures: Sequence[Tensor], distance: Distance = "angles") -> Tensor:
    """Compute distances of clients in degrees (PACFL eq. 2 and 3).

    Args:
        signatures: of each client, [d, k] as `class_vectors` makes them; k may differ.
        distance: `angles`: the smallest principal angle of the subspaces that two clients span; `trace`: the sum of the
            angles between the vectors in the same place (as many as both have); `entries`: the smallest angle between
            any two vectors, which the authors' script computes.

    Returns:
        float64 [m, m], symmetric, 0 on the diagonal.

    Examples:
        >>> x, y = torch.eye(3, dtype=torch.float64)[:, :2], torch.tensor([[1.0], [0], [1]], dtype=torch.float64)
        >>> proximity([x, y / 2**0.5])
        tensor([[ 0.0000, 45.0000],
                [45.0000,  0.0000]], dtype=torch.float64)
    """
    m = len(signatures)
    found = torch.zeros(m, m, dtype=torch.float64)
    spans = [torch.linalg.qr(u).Q for u in signatures] if distance == "angles" else list(signatures)
    for i in range(m):
        for j in range(i):
            found[i, j] = found[j, i] = _apart(spans[i], spans[j], distance)
    return found


def _apart(a: Tensor, b: Tensor, distance: Distance) -> float:
    products = a.T @ b
    if distance == "angles":
        return float(torch.rad2deg(_smallest_angle(a, b, products)))
    if distance == "trace":
        return float(torch.rad2deg(products.diagonal().clamp(-1, 1).arccos()).sum())
    return float(torch.rad2deg(products.max().clamp(-1, 1).arccos()))


def _smallest_angle(a: Tensor, b: Tensor, products: Tensor) -> Tensor:
    """Of two orthonormal bases; a small angle by its sine, whose cosine has lost its digits (Knyazev and Argentati)."""
    cosine = torch.linalg.svdvals(products)[0].clamp(max=1)
    if cosine**2 < 0.5:
        return cosine.arccos()
    if a.shape[1] < b.shape[1]:
        a, b, products = b, a, products.T
    return torch.linalg.svdvals(b - a @ products)[-1].clamp(max=1).arcsin()


def clusters_below(distances: Tensor, threshold: float, method: Literal["average", "weighted"] = "average") -> Tensor:
    """Join agglomerative clusters whose distance is at most the threshold, long [m], numbered by their first clients.

    Args:
        distances: [m, m], symmetric with a diagonal of 0.
        threshold: clusters are joined while the nearest two are no farther apart.
        method: how far two clusters are apart: `average`: the mean over pairs of clients; `weighted`: the mean of the
            two clusters that one of them was joined from, which the authors' script calls average.

    Examples:
        >>> clusters_below(torch.tensor([[0.0, 9, 1], [9, 0, 9], [1, 9, 0]]), 5.0)
        tensor([0, 1, 0])
    """
    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.long)
    from scipy.cluster.hierarchy import fcluster, linkage  # which takes a part of a second, and other methods need not
    from scipy.spatial.distance import squareform

    joined = linkage(squareform(distances.double().numpy(), checks=False), method=method)
    numbers = fcluster(joined, t=threshold, criterion="distance")
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse])
