"""A partition that the caller has made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.utils.errors import UserError

__all__ = ["GivenParts"]


class GivenParts(Partition):
    """Each client has the samples that are listed for it.

    Args:
        parts: a list of indices into the data set for each client; no index twice.
    """

    def __init__(self, parts: Sequence[Sequence[int]]) -> None:
        self.parts = [_indices(part, client) for client, part in enumerate(parts)]

    def describe(self) -> str:
        """Describe the partition: `given parts`."""
        return "given parts"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """See `Partition.assign`; nothing is drawn."""
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
            taken = part[owner[part] >= 0]
            if len(taken):
                raise UserError(
                    f"data.parts: sample {taken[0]} is listed by client {owner[taken[0]]} and by client {client}; "
                    f"list each sample once"
                )
            owner[part] = client
        return Assignment([np.sort(part) for part in self.parts])


def _indices(part: Sequence[int], client: int) -> np.ndarray:
    """A client's list, int64; nothing is rounded, and nothing but whole numbers counts as an index."""
    try:
        found = np.asarray(part)
    except ValueError:  # lists of several lengths
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise UserError(
            f"data.parts: what is listed for client {client} is not a list of whole numbers; give the indices of its "
            "samples"
        )
    if found.size and found.max() >= 2**63:
        raise UserError(f"data.parts: client {client} lists sample {found.max()}; no data set has that many")
    return found.astype(np.int64)
