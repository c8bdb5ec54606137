"""A partition in which some clients train on falsified labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.data.partitions.iid import IID
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["FlippedLabels"]


class FlippedLabels(Partition):
    """Falsified labels of the training and validation samples of some clients, all renamed alike (DPFL, section 4.3).

    Another partition divides the samples. Test labels stay true, and test samples are divided as without flipping.
    `ClientData.adversaries` marks the flipped clients, which are clusters separate from the others.

    Args:
        fraction: share of the clients that are flipped, drawn at random, rounded to a whole number; DPFL has 40 of 100.
        clients: the ids of the flipped clients, instead of a fraction.
        permutation: new name of each class for a flipped client, a list of all classes; null renames class y of C
            classes to C - 1 - y, as DPFL's public code does.
        base: partition that divides the samples; null means IID.
    """

    def __init__(
        self,
        fraction: float = 0.4,
        clients: Sequence[int] | None = None,
        permutation: Sequence[int] | None = None,
        base: Partition | None = None,
    ) -> None:
        if not 0 <= fraction <= 1:
            raise UserError(f"data.partition FlippedLabels: fraction must be from 0 to 1, not {fraction}")
        if clients is not None and len(set(clients)) < len(clients):
            raise UserError(f"data.partition FlippedLabels: clients names a client twice: {list(clients)}")
        self.fraction = fraction
        self.clients = None if clients is None else sorted(clients)
        self.permutation = None if permutation is None else list(permutation)
        self.base = IID() if base is None else base
        self.needs_writers = self.base.needs_writers

    def describe(self) -> str:
        """Describe the partition, for example `FlippedLabels(40% of Dirichlet(0.1))`."""
        who = f"{100 * self.fraction:g}%" if self.clients is None else f"{len(self.clients)} clients"
        return f"FlippedLabels({who} of {self.base.describe()})"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        return self._flip(self.base.assign(labels, num_classes, num_clients, seed), num_classes, num_clients, seed)

    def divide(self, source: Source, num_clients: int, seed: int) -> Assignment:
        """Divide the samples of a data set; see `Partition.divide`."""
        return self._flip(self.base.divide(source, num_clients, seed), source.num_strata, num_clients, seed)

    def _flip(self, base: Assignment, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Return the assignment with falsified labels of the flipped clients."""
        flipped = self._flipped(num_clients, seed)
        names = np.tile(np.arange(num_classes), (num_clients, 1)) if base.label_map is None else base.label_map
        groups = np.zeros(num_clients, dtype=np.int64) if base.clusters is None else base.clusters
        return dataclasses.replace(
            base,
            label_map=np.where(flipped[:, None], self._names(num_classes)[names], names),
            test_label_map=names if base.test_label_map is None else base.test_label_map,
            test_groups=base.groups_of_test(),
            adversaries=flipped if base.adversaries is None else base.adversaries | flipped,
            clusters=np.unique(2 * groups + flipped, return_inverse=True)[1].reshape(-1),
        )

    def _flipped(self, num_clients: int, seed: int) -> np.ndarray:
        """Draw or read the flipped clients, bool [m]."""
        flipped = np.zeros(num_clients, dtype=bool)
        if self.clients is None:
            number = math.floor(self.fraction * num_clients + 0.5)
            if self.fraction > 0 and not number:
                raise UserError(
                    f"data.partition FlippedLabels: fraction {self.fraction:g} of {num_clients} clients is none; "
                    f"raise fraction or num_clients"
                )
            chosen = numpy_stream(seed, "flipped clients").permutation(num_clients)[:number].tolist()
        else:
            chosen = self.clients
            if outside := [client for client in chosen if not 0 <= client < num_clients]:
                raise UserError(
                    f"data.partition FlippedLabels: clients names {outside[0]}, but there are {num_clients} clients, "
                    f"0 to {num_clients - 1}; correct clients or num_clients"
                )
        flipped[chosen] = True
        return flipped

    def _names(self, num_classes: int) -> np.ndarray:
        """Return the new name of each class for a flipped client, int64 [C]."""
        if self.permutation is None:
            return np.arange(num_classes)[::-1]
        if sorted(self.permutation) != list(range(num_classes)):
            raise UserError(
                f"data.partition FlippedLabels: permutation must list each of the {num_classes} classes, 0 to "
                f"{num_classes - 1}, once, not {self.permutation}"
            )
        return np.array(self.permutation)
