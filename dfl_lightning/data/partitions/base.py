"""What a partition is: who gets which images, and how a client's images differ from the source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dfl_lightning.errors import UserError

__all__ = ["Assignment", "Partition"]


@dataclass(frozen=True)
class Assignment:
    """The images of each client, before validation and test parts are cut from them.

    Attributes:
        train: per client the indices of its images in the source, int64, sorted; no image belongs to two clients.
        clusters: hidden cluster of each client, int64 [m], or None.
        rotation: counter-clockwise rotation of each client's images in degrees, float64 [m], or None.
        label_map: what each client calls each class of the source, int64 [m, C], or None.
        prior: class distribution that each client's images were drawn from, float64 [m, C], where its part of an
            official test set follows this rather than its counts; else None.
    """

    train: list[np.ndarray]
    clusters: np.ndarray | None = None
    rotation: np.ndarray | None = None
    label_map: np.ndarray | None = None
    prior: np.ndarray | None = None


class Partition(ABC):
    """How the training images of a data set are divided among the clients.

    A partition of one's own implements `assign`; it draws from `dfl_lightning.streams.numpy_stream(seed, ...)` only.
    """

    @abstractmethod
    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the images.

        Args:
            labels: class of every training image of the source, int64 [N].
            num_classes: number of classes C.
            num_clients: number of clients m, at most N.
            seed: seed of the split.

        Returns:
            The images of each client and what is known about them.

        Raises:
            UserError: the partition cannot be drawn for these numbers.
        """

    def describe(self) -> str:
        """The partition in a word or two, for the banner."""
        return type(self).__name__


def contiguous_clusters(num_clients: int, num_clusters: int, name: str) -> np.ndarray:
    """Cluster of each client, int64 [m]: blocks of consecutive ids, as even as possible.

    Example:
        >>> contiguous_clusters(5, 2, "RotatedClusters").tolist()
        [0, 0, 0, 1, 1]
    """
    if num_clusters > num_clients:
        raise UserError(
            f"data.partition {name}: {num_clusters} clusters, but only {num_clients} clients; "
            f"set num_clients to at least {num_clusters} or ask for fewer clusters"
        )
    sizes = [len(block) for block in np.array_split(np.arange(num_clients), num_clusters)]
    return np.repeat(np.arange(num_clusters), sizes)


def deal(indices: np.ndarray, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle `indices` and deal them out; sizes differ by at most one, each part is sorted."""
    return [np.sort(part) for part in np.array_split(rng.permutation(indices), num_clients)]


def split_by_counts(
    counts: np.ndarray, labels: np.ndarray, num_classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Give client i `counts[i, c]` random images of class c; no image twice, each part sorted.

    Args:
        counts: images a client gets of each class, int64 [m, C]; a column sums to at most the images of its class.
        labels: class of every image, int64 [N].
        num_classes: number of classes C.
        rng: where the images are drawn from.
    """
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(num_classes):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        ends = np.cumsum(counts[:, c])
        for part, start, end in zip(parts, ends - counts[:, c], ends, strict=True):
            part.append(shuffled[start:end])
    return [np.sort(np.concatenate(part)) for part in parts]
