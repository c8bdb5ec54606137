"""A partition with a few classes for each client."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, TooFewOfAClass, split_by_counts
from dfl_lightning.data.partitions.dirichlet import check_alpha, divide
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["Pathological"]

MIN_PER_CLASS = 10


class Pathological(Partition):
    """Samples of a few random classes for each client.

    The default follows Dis-PFL (Dai et al. 2022), as AFIND+ does: all clients have the same number of samples. Classes
    are distributed so that the numbers of clients with a class differ by at most one, and the samples of a class are
    divided evenly among its clients. Samples that a client has in excess of the smallest client are left out.
    (Dis-PFL's own code draws the classes independently and then gives some samples to several clients.)
    With `alpha` it follows DPFL (2025, appendix H): classes are drawn independently, and sizes differ. Each client with
    a class gets 10 of its samples (fewer if the class is too small); the others are divided among them by Dir(alpha).

    Args:
        classes: number of classes of each client.
        alpha: concentration of sizes; null for equal sizes. DPFL's Patho(3) is `classes=3, alpha=0.5`.
    """

    def __init__(self, classes: int = 2, alpha: float | None = None) -> None:
        if classes < 1:
            raise UserError(f"data.partition Pathological: classes must be at least 1, not {classes}")
        if alpha is not None:
            check_alpha(alpha, "Pathological")
        self.classes = classes
        self.alpha = alpha

    def describe(self) -> str:
        """Describe the partition, for example `Pathological(2 classes)`."""
        sizes = "" if self.alpha is None else f", sizes Dir({self.alpha:g})"
        return f"Pathological({self.classes} classes{sizes})"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        rng = numpy_stream(seed, "partition")
        available = np.bincount(labels, minlength=num_classes)
        existing = np.flatnonzero(available)
        if self.classes > len(existing):
            raise TooFewOfAClass(
                f"data.partition Pathological: {self.classes} classes a client, but the data have {len(existing)}; "
                f"lower classes"
            )
        holds = np.zeros((num_clients, num_classes), dtype=bool)
        if self.alpha is None:
            for client in rng.permutation(num_clients):
                # Classes that the fewest clients have come first, in random order, so that these numbers differ by at
                # most one.
                order = np.lexsort((rng.random(len(existing)), holds[:, existing].sum(0)))
                holds[client, existing[order[: self.classes]]] = True
            counts = _cut_to_smallest(_even(holds, available, rng), rng)
            prior = holds / self.classes
            return Assignment(split_by_counts(counts, labels, num_classes, rng), prior=prior)
        for client in range(num_clients):
            holds[client, rng.choice(existing, self.classes, replace=False)] = True
        return Assignment(split_by_counts(self._by_dirichlet(holds, available, rng), labels, num_classes, rng))

    def _by_dirichlet(self, holds: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Divide each class among the clients that have it by Dir(alpha), after `MIN_PER_CLASS` samples for each."""
        assert self.alpha is not None
        counts = np.zeros(holds.shape, dtype=np.int64)
        for c in np.flatnonzero(holds.any(0)):
            holders = np.flatnonzero(holds[:, c])
            least = min(MIN_PER_CLASS, int(available[c]) // len(holders))
            rest = int(available[c]) - least * len(holders)
            counts[holders, c] = least + divide(rest, rng.dirichlet(np.full(len(holders), self.alpha)))
        return counts


def _even(holds: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide each class evenly among the clients that have it; those with one sample more are drawn at random."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c in np.flatnonzero(holds.any(0)):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        counts[holders, c] = available[c] // len(holders)
        counts[holders[: available[c] % len(holders)], c] += 1
    return counts


def _cut_to_smallest(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Reduce all clients to the size of the smallest by leaving out samples at random."""
    size = int(counts.sum(1).min())
    return np.stack([rng.multivariate_hypergeometric(row, size, method="marginals") for row in counts])
