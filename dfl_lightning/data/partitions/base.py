"""What a partition is: who gets which samples, and how a client's samples differ from the source."""

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
    """The data do not have the classes that a partition asks for, or not enough of one."""


@dataclass(frozen=True)
class Assignment:
    """The samples of each client, before validation and test parts are cut from them.

    Attributes:
        train: per client the indices of its samples in the source, int64, sorted; no sample belongs to two clients.
        clusters: ground-truth cluster of each client, int64 [m], or None.
        rotation: counter-clockwise rotation of each client's images in degrees, float64 [m], or None.
        label_map: what each client calls each class of the source, int64 [m, C], or None.
        test_label_map: the same for its test samples, where that differs; None means `label_map`.
        prior: class distribution that each client's samples were drawn from, float64 [m, C], where its part of an
            official test set follows this rather than its counts; else None.
        adversaries: clients whose training labels were falsified, bool [m]; None where that is not a question.
        writers: name of the writer that each client is, str [m], where clients are writers; else None.
        test: per client the indices of its samples in the official test set, where it is known which are its own; or
            None.
        tests_on_own: the official test set has nothing like the clients' samples: unless `test_fraction` says
            otherwise, each client's test is held out from its own.
        test_groups: clients of the same group divide the official test set among themselves, int64 [m]; None means all
            together, or the clusters where these see samples or names transformed.
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
        """Return who divides the official test set with whom, int64 [m]; see `test_groups`."""
        if self.test_groups is not None:
            return self.test_groups
        if self.clusters is not None and (self.rotation is not None or self.label_map is not None):
            return self.clusters
        return np.zeros(len(self.train), dtype=np.int64)


class Partition(RecordsArguments, ABC):
    """How the training samples of a data set are divided among the clients.

    Your own partition implements `assign`; it draws from
    `dfl_lightning.utils.randomness.random_streams.numpy_stream(seed, ...)` only. One that needs more than labels
    overrides `divide`, too.

    Attributes:
        needs_writers: whether the data set must say who wrote each sample, where reading that is extra work.
    """

    needs_writers: bool = False

    @abstractmethod
    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples.

        Args:
            labels: class of every training sample of the source, int64 [N]; the stratum where targets are no classes
                (see `Source.strata`).
            num_classes: number of classes C, or of strata.
            num_clients: number of clients m, at most N.
            seed: seed of the split.

        Returns:
            The samples of each client and what is known about them.

        Raises:
            UserError: the partition cannot be drawn for these numbers.
        """

    def divide(self, source: Source, num_clients: int, seed: int) -> Assignment:
        """Divide the training samples of a data set; the default calls `assign` with their strata.

        Args:
            source: the data set.
            num_clients: m.
            seed: of the partition's draws.

        Returns:
            Indices of the training samples by client, and what else the partition sets.

        Raises:
            TooFewOfAClass: the sentence says what counts as a class where targets are none.
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
    """Cluster of each client, int64 [m]: blocks of consecutive ids, as even as possible.

    Args:
        num_clients: m.
        num_clusters: 1 to m.
        name: of the partition, for the message.

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
    """Shuffle indices and deal them to clients; sizes differ by at most one, each part is sorted.

    Args:
        indices: int64 [N].
        num_clients: m.
        rng: shuffles them.
    """
    each, over = divmod(len(indices), num_clients)
    return sorted_pieces(rng.permutation(indices), each + (np.arange(num_clients) < over))


def split_by_counts(
    counts: np.ndarray, labels: np.ndarray, num_classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Give client i `counts[i, c]` random samples of class c; no sample twice, each part sorted.

    Args:
        counts: samples a client gets of each class, int64 [m, C]; a column sums to at most the samples of its class.
        labels: class of every sample, int64 [N].
        num_classes: number of classes C.
        rng: where the samples are drawn from.
    """
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(num_classes):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        ends = np.cumsum(counts[:, c])
        for part, start, end in zip(parts, ends - counts[:, c], ends, strict=True):
            part.append(shuffled[start:end])
    return [np.sort(np.concatenate(part)) for part in parts]
