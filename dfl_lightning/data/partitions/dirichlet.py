"""Label skew by a Dirichlet distribution, in the flavours of several papers and their code."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, split_by_counts
from dfl_lightning.data.partitions.image_by_image import draw_image_by_image
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["Dirichlet"]

MAX_DRAWS = 10_000

_IN_WORDS = {"equal_sizes": "", "image_by_image": ", image by image", "per_class": ", per class"}


class Dirichlet(Partition):
    """Label skew by a Dirichlet distribution: the smaller alpha, the fewer classes a client has.

    Flavour `image_by_image` is that of the public code of Dis-PFL (Dai et al. 2022), which AFIND+ follows. Each client
    has floor(N / m) samples and its own class distribution Dir(alpha). One sample after the other is drawn without
    replacement, each by a random client that is not full; when a class runs out, the distributions are renormalised
    over the classes that are left. A client's part of an official test set has the class shares of its training
    samples.
    Flavour `equal_sizes`, the default, has the same sizes and distributions, but all clients draw at the same time. If
    they want more samples of a class than there are, these are distributed at random. When classes run out, clients are
    more skewed: of 10 clients with 10 classes at alpha 0.1, a client's largest class has half of its samples on
    average, in `image_by_image` 47 %. A client's part of an official test set follows its class distribution.
    Flavour `per_class` is that of DPFL (2025, appendix H), taken from NIID-Bench (Li et al. 2022, section IV-A). Each
    class is divided among the clients by Dir(alpha); clients that already have N / m samples get no more. All is drawn
    again until the smallest client has `min_size` samples. All samples are used.

    Args:
        alpha: concentration, > 0; 0.1 is strong skew, 100 is nearly IID.
        flavour: `equal_sizes`, `image_by_image` or `per_class`.
        min_size: least number of samples of a client in flavour `per_class`; null means 20 as in DPFL, or a tenth of
            the mean size N / m if that is less, at least 2.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        flavour: Literal["equal_sizes", "image_by_image", "per_class"] = "equal_sizes",
        min_size: int | None = None,
    ) -> None:
        check_alpha(alpha, "Dirichlet")
        if flavour not in _IN_WORDS:
            raise UserError(f"data.partition Dirichlet: flavour must be {', '.join(_IN_WORDS)}, not {flavour!r}")
        if min_size is not None and min_size < 1:
            raise UserError(f"data.partition Dirichlet: min_size must be at least 1, not {min_size}")
        self.alpha = alpha
        self.flavour = flavour
        self.min_size = min_size

    def describe(self) -> str:
        """Describe the partition, for example `Dirichlet(0.1)`."""
        return f"Dirichlet({self.alpha:g}{_IN_WORDS[self.flavour]})"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        rng = numpy_stream(seed, "partition")
        available = np.bincount(labels, minlength=num_classes)
        if self.flavour == "per_class":
            counts = self._per_class(available, num_clients, rng)
            return Assignment(split_by_counts(counts, labels, num_classes, rng))
        prior = rng.dirichlet(np.full(num_classes, self.alpha), size=num_clients)
        size = len(labels) // num_clients
        if self.flavour == "image_by_image":
            counts = draw_image_by_image(prior, available, size, rng)
            return Assignment(split_by_counts(counts, labels, num_classes, rng), prior=counts / size)
        counts = draw_equal_sizes(prior, available, size, rng)
        return Assignment(split_by_counts(counts, labels, num_classes, rng), prior=prior)

    def _per_class(self, available: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        mean_size = available.sum() / num_clients
        min_size = max(2, min(20, int(mean_size / 10))) if self.min_size is None else self.min_size
        smallest_seen = 0
        for _ in range(MAX_DRAWS if min_size <= mean_size else 0):
            counts = np.zeros((num_clients, len(available)), dtype=np.int64)
            for c, total in enumerate(available):
                share = rng.dirichlet(np.full(num_clients, self.alpha))
                share[counts.sum(1) >= mean_size] = 0.0
                if share.sum() <= 0:  # all clients with a share are full, so that the others divide the class evenly
                    share = (counts.sum(1) < mean_size).astype(float)
                if share.sum() <= 0:
                    share = np.ones(num_clients)
                counts[:, c] = divide(int(total), share)
            smallest_seen = max(smallest_seen, int(counts.sum(1).min()))
            if smallest_seen >= min_size:
                return counts
        raise UserError(
            f"data.partition {self.describe()}: no division of {available.sum()} samples among {num_clients} clients "
            f"gave every client {min_size} (best of {MAX_DRAWS} draws: {smallest_seen}); lower min_size or "
            f"num_clients, raise alpha, or use flavour=equal_sizes"
        )


def check_alpha(alpha: float, name: str) -> None:
    """Raise if a concentration is not a positive number.

    Args:
        alpha: the concentration.
        name: name of the partition, for the message.

    Raises:
        UserError: the concentration is zero, negative, infinite or NaN.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise UserError(f"data.partition {name}: alpha must be a positive number, not {alpha}")


def divide(total: int, share: np.ndarray) -> np.ndarray:
    """Divide a number of items in proportion to shares, by rounding the cumulative shares.

    Each number differs by less than one from its exact share, and the sum is `total`.

    Args:
        total: number of items.
        share: shares >= 0, not all zero, [m].

    Returns:
        int64 [m].

    Examples:
        >>> divide(10, np.array([1.0, 0.0, 2.0])).tolist()
        [3, 0, 7]
    """
    ends = np.floor(np.cumsum(share) / share.sum() * total + 1e-9).astype(np.int64)
    ends[np.flatnonzero(share)[-1] :] = total  # rounding may have changed the last sum
    return np.diff(ends, prepend=0)


def draw_equal_sizes(prior: np.ndarray, available: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of samples of each class for each client, if all clients draw at the same time.

    In each step a client draws the samples that it still lacks from its prior, renormalised over the classes that are
    left. If clients want more samples of a class than are left, these are distributed at random, and the class is
    empty.

    Args:
        prior: class distribution of each client, [m, C].
        available: number of samples of each class, int64 [C].
        size: number of samples of a client.
        rng: generator of the draws.

    Returns:
        int64 [m, C], rows sum to `size`.
    """
    left = available.copy()
    counts = np.zeros(prior.shape, dtype=np.int64)
    while (lacking := size - counts.sum(1)).any():
        open_prior = prior * (left > 0)
        total = open_prior.sum(1, keepdims=True)
        # If all classes of a client have run out, it draws from all samples that are left.
        weights = np.where(total > 1e-12, open_prior / np.maximum(total, 1e-300), left / left.sum())
        wanted = rng.multinomial(lacking, weights / weights.sum(1, keepdims=True))
        for c in range(len(left)):
            if (drawn := wanted[:, c].sum()) > left[c]:
                wanted[:, c] = rng.multivariate_hypergeometric(wanted[:, c], left[c], method="marginals")
                drawn = left[c]
            left[c] -= drawn
        counts += wanted
    return counts
