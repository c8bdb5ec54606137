"""Every client draws from the same distribution."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, deal
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["IID"]


class IID(Partition):
    """All samples, shuffled and dealt out evenly: sizes differ by at most one."""

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """See `Partition.assign`; every sample belongs to one client."""
        return Assignment(deal(np.arange(len(labels)), num_clients, numpy_stream(seed, "partition")))
