"""The base class of partitions, and helpers to divide samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.index_lists import sorted_pieces
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError

__all__ = ["Assignment", "Partition", "TooFewOfAClass"]


class TooFewOfAClass(UserError):
    """The data do not have the classes that a partition requires, or too few samples of one."""


@dataclass(frozen=True)
class Assignment:
    """The samples of each client, before validation and test parts are held out.

    Attributes:
        train: indices of each client's samples in the source, int64, sorted; no sample belongs to two clients.
        clusters: ground-truth cluster of each client, int64 [m], or None.
        rotation: counter-clockwise rotation of each client's images in degrees, float64 [m], or None.
        label_map: new name of each class of the source for each client, int64 [m, C], or None.
        test_label_map: the label map for test samples, if it differs; None means `label_map`.
        prior: class distribution that each client's samples were drawn from, float64 [m, C], if the client's part of an
            official test set follows it instead of the counts of its training samples; else None.
        adversaries: clients whose training labels were falsified, bool [m]; None if the partition does not do that.
        writers: name of the writer that each client is, str [m]; None if clients are not writers.
        test: indices of each client's samples in the official test set, if it is known which are its own; or None.
        tests_on_own: True if the official test set does not have samples like the clients'. Each client's test is then
            held out from its own samples, unless `test_fraction` is set.
        test_groups: group of each client, int64 [m]; clients of a group divide the official test set among themselves.
            None means a single group, or the clusters if these have rotations or label maps.
    """

    train: list[np.ndarray]
    clusters: np.ndarray | None = None
    rotation: np.ndarray | None = None
    label_map: np.ndarray | None = None
    prior: np.ndarray | None = None
    test_label_map: np.ndarray | None = None
    adversaries: np.ndarray | None = None
    writers: np.ndarray | None = None
    test: list[np.ndarray] | None = None
    tests_on_own: bool = False
    test_groups: np.ndarray | None = None

    def groups_of_test(self) -> np.ndarray:
        """Return the group of each client for the division of the official test set, int64 [m]; see `test_groups`."""
        if self.test_groups is not None:
            return self.test_groups
        if self.clusters is not None and (self.rotation is not None or self.label_map is not None):
            return self.clusters
        return np.zeros(len(self.train), dtype=np.int64)


class Partition(RecordsArguments, ABC):
    """Base class of rules that divide the training samples of a data set among the clients.

    Your own partition implements `assign`, which must draw only from
    `dfl_lightning.utils.randomness.random_streams.numpy_stream(seed, ...)`. A partition that needs more than labels
    also overrides `divide`.

    Attributes:
        needs_writers: True if the data set must provide the writer of each sample, even if reading these is extra work.
    """

    needs_writers: bool = False

    @abstractmethod
    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels.

        Args:
            labels: class of each training sample of the source, int64 [N]; its stratum if targets are not classes
                (see `Source.strata`).
            num_classes: number of classes C, or of strata.
            num_clients: number of clients m, at most N.
            seed: seed of the split.

        Returns:
            The samples of each client and their properties.

        Raises:
            UserError: the partition cannot be drawn for these numbers.
        """

    def divide(self, source: Source, num_clients: int, seed: int) -> Assignment:
        """Divide the training samples of a data set; the default calls `assign` with their strata.

        Args:
            source: the data set.
            num_clients: number of clients m.
            seed: seed of the split.

        Returns:
            The samples of each client and their properties.

        Raises:
            TooFewOfAClass: the data have too few classes, or samples of one; the message explains strata if targets
                are not classes.
        """
        try:
            return self.assign(source.strata_of[0].numpy(), source.num_strata, num_clients, seed)
        except TooFewOfAClass as error:
            if not source.in_place_of_classes:
                raise
            raise TooFewOfAClass(f"{error}; classes are here {source.in_place_of_classes}") from error

    def describe(self) -> str:
        """Describe the partition in a word or two, for the banner."""
        return type(self).__name__


def contiguous_clusters(num_clients: int, num_clusters: int, name: str) -> np.ndarray:
    """Assign clients to clusters, int64 [m], that are blocks of consecutive ids of sizes as equal as possible.

    Args:
        num_clients: number of clients m.
        num_clusters: number of clusters, 1 to m.
        name: name of the partition, for the message.

    Raises:
        UserError: there are more clusters than clients.

    Examples:
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
    """Shuffle indices and divide them among clients into sorted parts whose sizes differ by at most one.

    Args:
        indices: indices of samples, int64 [N].
        num_clients: number of clients m.
        rng: generator of the permutation.
    """
    each, over = divmod(len(indices), num_clients)
    return sorted_pieces(rng.permutation(indices), each + (np.arange(num_clients) < over))


def split_by_counts(
    counts: np.ndarray, labels: np.ndarray, num_classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw `counts[i, c]` samples of class c for client i; parts are sorted, and no sample belongs to two clients.

    Args:
        counts: number of samples of each client and class, int64 [m, C]; a column sums to at most the samples of its
            class.
        labels: class of each sample, int64 [N].
        num_classes: number of classes C.
        rng: generator of the draws.
    """
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(num_classes):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        ends = np.cumsum(counts[:, c])
        for part, start, end in zip(parts, ends - counts[:, c], ends, strict=True):
            part.append(shuffled[start:end])
    return [np.sort(np.concatenate(part)) for part in parts]
