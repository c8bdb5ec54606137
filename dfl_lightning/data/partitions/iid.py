"""A partition in which all clients have the same distribution."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, deal
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["IID"]


class IID(Partition):
    """Random samples for all clients, in numbers that differ by at most one; all samples are used."""

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide all samples at random; see `Partition.assign`."""
        return Assignment(deal(np.arange(len(labels)), num_clients, numpy_stream(seed, "partition")))
