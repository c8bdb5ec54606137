"""A few classes per client."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, TooFewOfAClass, split_by_counts
from dfl_lightning.data.partitions.dirichlet import check_alpha, divide
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["Pathological"]

MIN_PER_CLASS = 10


class Pathological(Partition):
    """Every client has samples of a few random classes only.

    By default as in Dis-PFL (Dai et al. 2022), which AFIND+ follows: all clients have the same number of
    samples. Classes are dealt out so that the numbers of clients holding a class differ by at most one, the samples of
    a class are divided evenly over its holders, and what a client has above the smallest client is left out.
    (Dis-PFL's own code draws the classes freely and then gives some samples to several clients.)
    With `alpha` as in DPFL (2025, appendix H): classes are drawn freely; each holder of a class gets 10 of its samples
    (fewer where the class is too small for that), the others are divided over its holders by Dir(alpha); sizes differ.

    Args:
        classes: classes of each client.
        alpha: null for equal sizes; DPFL's Patho(3) is `classes=3, alpha=0.5`.
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
        """See `Partition.assign`."""
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
                # The least held classes, ties by lot: holders of two classes never differ by more than one.
                order = np.lexsort((rng.random(len(existing)), holds[:, existing].sum(0)))
                holds[client, existing[order[: self.classes]]] = True
            counts = _cut_to_smallest(_even(holds, available, rng), rng)
            prior = holds / self.classes
            return Assignment(split_by_counts(counts, labels, num_classes, rng), prior=prior)
        for client in range(num_clients):
            holds[client, rng.choice(existing, self.classes, replace=False)] = True
        return Assignment(split_by_counts(self._by_dirichlet(holds, available, rng), labels, num_classes, rng))

    def _by_dirichlet(self, holds: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        assert self.alpha is not None
        counts = np.zeros(holds.shape, dtype=np.int64)
        for c in np.flatnonzero(holds.any(0)):
            holders = np.flatnonzero(holds[:, c])
            least = min(MIN_PER_CLASS, int(available[c]) // len(holders))
            rest = int(available[c]) - least * len(holders)
            counts[holders, c] = least + divide(rest, rng.dirichlet(np.full(len(holders), self.alpha)))
        return counts


def _even(holds: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide each class evenly over its holders; who gets one more is drawn by lot."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c in np.flatnonzero(holds.any(0)):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        counts[holders, c] = available[c] // len(holders)
        counts[holders[: available[c] % len(holders)], c] += 1
    return counts


def _cut_to_smallest(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give all clients the size of the smallest by leaving out samples at random."""
    size = int(counts.sum(1).min())
    return np.stack([rng.multivariate_hypergeometric(row, size, method="marginals") for row in counts])
