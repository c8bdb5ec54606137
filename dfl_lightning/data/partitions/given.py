"""A partition by given lists of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.utils.errors import UserError

__all__ = ["GivenParts"]


class GivenParts(Partition):
    """Samples of each client by given lists.

    Args:
        parts: list of indices into the data set for each client, without repeated indices.
    """

    def __init__(self, parts: Sequence[Sequence[int]]) -> None:
        self.parts = [_indices(part, client) for client, part in enumerate(parts)]

    def describe(self) -> str:
        """Describe the partition: `given parts`."""
        return "given parts"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Give the clients their listed samples without a random draw; see `Partition.assign`."""
        owner = np.full(len(labels), -1)
        for client, part in enumerate(self.parts):
            outside = part[(part < 0) | (part >= len(labels))]
            if len(outside):
                raise UserError(
                    f"data.parts: client {client} lists sample {outside[0]}, but the data set has {len(labels)} "
                    f"samples, 0 to {len(labels) - 1}; correct its list"
                )
            values, times = np.unique(part, return_counts=True)
            if (times > 1).any():
                raise UserError(
                    f"data.parts: client {client} lists sample {values[times > 1][0]} twice; list each sample once"
                )
            shared = part[owner[part] >= 0]
            if len(shared):
                raise UserError(
                    f"data.parts: sample {shared[0]} is listed by client {owner[shared[0]]} and by client {client}; "
                    f"list each sample once"
                )
            owner[part] = client
        return Assignment([np.sort(part) for part in self.parts])


def _indices(part: Sequence[int], client: int) -> np.ndarray:
    """Convert a client's list to int64 without rounding; raise if it contains anything but integers."""
    try:
        indices = np.asarray(part)
    except ValueError:  # numpy refuses nested lists of several lengths
        indices = np.empty((0, 0))
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise UserError(
            f"data.parts: what is listed for client {client} is not a list of whole numbers; give the indices of its "
            "samples"
        )
    if indices.size and indices.max() >= 2**63:
        raise UserError(f"data.parts: client {client} lists sample {indices.max()}; no data set has that many")
    return indices.astype(np.int64)
