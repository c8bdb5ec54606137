"""A partition that somebody else has made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.errors import UserError

__all__ = ["GivenParts"]


class GivenParts(Partition):
    """Each client has the images that are listed for it.

    Args:
        parts: a list of indices into the data set for each client; no index twice.
    """

    def __init__(self, parts: Sequence[Sequence[int]]) -> None:
        self.parts = [np.asarray(part, dtype=np.int64).reshape(-1) for part in parts]

    def describe(self) -> str:
        """`given parts`."""
        return "given parts"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """See `Partition.assign`; nothing is drawn."""
        owner = np.full(len(labels), -1)
        for client, part in enumerate(self.parts):
            outside = part[(part < 0) | (part >= len(labels))]
            if len(outside):
                raise UserError(
                    f"data.parts: client {client} lists image {outside[0]}, but the data set has {len(labels)} images, "
                    f"0 to {len(labels) - 1}; correct its list"
                )
            values, times = np.unique(part, return_counts=True)
            if (times > 1).any():
                raise UserError(
                    f"data.parts: client {client} lists image {values[times > 1][0]} twice; list each image once"
                )
            taken = part[owner[part] >= 0]
            if len(taken):
                raise UserError(
                    f"data.parts: image {taken[0]} is listed by client {owner[taken[0]]} and by client {client}; "
                    f"list each image once"
                )
            owner[part] = client
        return Assignment([np.sort(part) for part in self.parts])
