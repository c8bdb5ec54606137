"""Partitions with ground-truth clusters, whose clients share a rotation, a label map or a set of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.data.partitions.base import (
    Assignment,
    Partition,
    TooFewOfAClass,
    contiguous_clusters,
    deal,
    split_by_counts,
)
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["LabelClusters", "RotatedClusters", "SwappedLabelClusters"]


class _Transformed(Partition):
    """Base class of partitions with IID samples that each cluster transforms in its own way.

    Args:
        per_class: number of a client's samples of each class; None: all samples are divided evenly, whatever their
            classes.
    """

    def __init__(self, per_class: int | None) -> None:
        if per_class is not None and per_class < 1:
            raise UserError(
                f"data.partition {type(self).__name__}: per_class must be at least 1, or null for all samples, "
                f"not {per_class}"
            )
        self.per_class = per_class

    def _parts(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> list[np.ndarray]:
        rng = numpy_stream(seed, "partition")
        if self.per_class is None:
            return deal(np.arange(len(labels)), num_clients, rng)
        available = np.bincount(labels, minlength=num_classes)
        if available.min() < num_clients * self.per_class:
            raise TooFewOfAClass(
                f"data.partition {self.describe()}: {num_clients} clients with {self.per_class} samples of each class "
                f"need {num_clients * self.per_class}, but class {available.argmin()} has {available.min()}; lower "
                f"num_clients or per_class"
            )
        return split_by_counts(np.full((num_clients, num_classes), self.per_class), labels, num_classes, rng)

    def _described(self, clusters: list[str]) -> str:
        each = "" if self.per_class is None else f"; {self.per_class} per class"
        return f"{type(self).__name__}{{{','.join(clusters)}{each}}}"


class RotatedClusters(_Transformed):
    """IID images that each cluster rotates by an angle of its own (PANM, section 4.1).

    Clusters are blocks of consecutive clients, of sizes as equal as possible.

    Args:
        degrees: counter-clockwise angle of each cluster in degrees. Multiples of 90 are exact, others bilinear.
        per_class: number of a client's samples of each class (20 or 10 in PANM); null: all samples are divided evenly,
            whatever their classes.
    """

    def __init__(self, degrees: Sequence[float] = (0, 90, 180, 270), per_class: int | None = None) -> None:
        if not degrees or not all(math.isfinite(angle) for angle in degrees):
            raise UserError(f"data.partition RotatedClusters: degrees must be a list of numbers, not {degrees!r}")
        super().__init__(per_class)
        self.degrees = [float(angle) for angle in degrees]

    def describe(self) -> str:
        """Describe the partition: `RotatedClusters{0,90,180,270}`, or `RotatedClusters{0,180; 20 per class}`."""
        return self._described([f"{angle:g}" for angle in self.degrees])

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples at random, without `per_class` all of them; see `Partition.assign`."""
        clusters = contiguous_clusters(num_clients, len(self.degrees), self.describe())
        parts = self._parts(labels, num_classes, num_clients, seed)
        return Assignment(parts, clusters, rotation=np.array(self.degrees)[clusters])


class SwappedLabelClusters(_Transformed):
    """IID samples of which each cluster exchanges some labels (PANM, section 4.1).

    Clusters are blocks of consecutive clients, of sizes as equal as possible.

    Args:
        swaps: for each cluster a list of cycles of labels. `[0, 1]` swaps two, and `[0, 1, 2]` renames 0 to 1, 1 to 2
            and 2 to 0. A cluster with `[]` instead of a list of cycles keeps its labels. Null means PANM's two
            clusters, `[[[0, 1]], [[6, 7]]]`; its four are `[[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]`.
        per_class: number of a client's samples of each class (20 or 10 in PANM); null: all samples are divided evenly,
            whatever their classes.
    """

    def __init__(self, swaps: list[list[list[int]]] | None = None, per_class: int | None = None) -> None:
        super().__init__(per_class)
        self.swaps: list[list[list[int]]] = [[[0, 1]], [[6, 7]]] if swaps is None else swaps
        if not self.swaps:
            raise UserError("data.partition SwappedLabelClusters: swaps has no cluster; give a list of cycles for each")
        for cluster, cycles in enumerate(self.swaps):
            named = [label for cycle in cycles for label in cycle]
            if len(set(named)) < len(named):
                raise UserError(
                    f"data.partition SwappedLabelClusters: cluster {cluster} names a label twice in {cycles}; "
                    f"each label may be in one cycle"
                )

    def describe(self) -> str:
        """Describe the partition, for example `SwappedLabelClusters{(0 1),(6 7)}`."""
        names = ["".join(f"({' '.join(map(str, cycle))})" for cycle in cycles) or "-" for cycles in self.swaps]
        return self._described(names)

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples at random, without `per_class` all of them; see `Partition.assign`."""
        clusters = contiguous_clusters(num_clients, len(self.swaps), self.describe())
        maps = np.tile(np.arange(num_classes), (len(self.swaps), 1))
        for cluster, cycles in enumerate(self.swaps):
            for cycle in cycles:
                if any(not 0 <= label < num_classes for label in cycle):
                    raise TooFewOfAClass(
                        f"data.partition SwappedLabelClusters: cluster {cluster} names labels {cycle}, but the data "
                        f"have {num_classes} classes, 0 to {num_classes - 1}; change swaps"
                    )
                maps[cluster, cycle] = np.roll(cycle, -1)
        parts = self._parts(labels, num_classes, num_clients, seed)
        return Assignment(parts, clusters, label_map=maps[clusters])


class LabelClusters(Partition):
    """Labels divided among clusters, whose clients have samples of these labels only (FL-FDMS, section 6.1.1).

    Labels are divided in their order, and clusters are blocks of consecutive clients, both of sizes as equal as
    possible. All clients have the same number of samples; the other samples of a cluster are left out.

    Args:
        clusters: number of clusters; FL-FDMS has 5, of two labels each.
        labels: the labels of each cluster, instead of a number of clusters. The toy example of AFIND+ (figure 2) is
            `[[4, 5, 6, 7], [0, 1, 2, 3]]` with 3 clients.
    """

    def __init__(self, clusters: int = 5, labels: list[list[int]] | None = None) -> None:
        if clusters < 1:
            raise UserError(f"data.partition LabelClusters: clusters must be at least 1, not {clusters}")
        if labels is not None:
            named = [label for group in labels for label in group]
            if not labels or not all(labels) or len(set(named)) < len(named):
                raise UserError(
                    f"data.partition LabelClusters: labels must give each cluster labels of its own, which no other "
                    f"has, not {labels}"
                )
        self.clusters = clusters if labels is None else len(labels)
        self.labels = labels

    def describe(self) -> str:
        """Describe the partition, for example `LabelClusters(5)` or `LabelClusters{4 5 6 7,0 1 2 3}`."""
        if self.labels is not None:
            return f"LabelClusters{{{','.join(' '.join(map(str, group)) for group in self.labels)}}}"
        return f"LabelClusters({self.clusters})"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        if self.clusters > num_classes:
            raise TooFewOfAClass(
                f"data.partition LabelClusters: {self.clusters} clusters, but only {num_classes} labels to divide "
                f"among them; lower clusters"
            )
        clusters = contiguous_clusters(num_clients, self.clusters, self.describe())
        rng = numpy_stream(seed, "partition")
        groups = np.array_split(np.arange(num_classes), self.clusters) if self.labels is None else self.labels
        for group in groups:
            if outside := [label for label in group if not 0 <= label < num_classes]:
                raise TooFewOfAClass(
                    f"data.partition {self.describe()}: label {outside[0]} does not exist, the data have {num_classes} "
                    f"classes, 0 to {num_classes - 1}; correct labels"
                )
        pools = [np.flatnonzero(np.isin(labels, group)) for group in groups]
        size = min(len(pool) // int((clusters == cluster).sum()) for cluster, pool in enumerate(pools))
        parts: list[np.ndarray] = []
        for cluster, pool in enumerate(pools):
            members = int((clusters == cluster).sum())
            parts += deal(rng.permutation(pool)[: members * size], members, rng)
        return Assignment(parts, clusters)
