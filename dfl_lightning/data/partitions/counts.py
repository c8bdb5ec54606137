"""A partition by a table of the numbers of samples of each client and class."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, TooFewOfAClass, split_by_counts
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["ClassCounts"]

DPFL_TOY = [
    {0: 50, 4: 50, 6: 50, 8: 50},
    {0: 300, 6: 300, 1: 200, 3: 200},
    {4: 300, 8: 300, 5: 200, 7: 200},
]


class ClassCounts(Partition):
    """Random samples in numbers that a table sets for each client and class.

    Args:
        counts: for each client the number of samples by class, for example `[{0: 50, 4: 50}, {1: 200}]`. Null means the
            three clients of DPFL's example of combinatorial gains (appendix A).
    """

    def __init__(self, counts: list[dict[int, int]] | None = None) -> None:
        self.counts = DPFL_TOY if counts is None else counts
        for client, row in enumerate(self.counts):
            if any(number < 0 for number in row.values()):
                raise UserError(f"data.partition ClassCounts: client {client} has a negative number in {row}")

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        if len(self.counts) != num_clients:
            raise UserError(
                f"data.partition ClassCounts: counts lists {len(self.counts)} clients, but num_clients is "
                f"{num_clients}; set num_clients: {len(self.counts)}"
            )
        table = np.zeros((num_clients, num_classes), dtype=np.int64)
        for client, row in enumerate(self.counts):
            for label, number in row.items():
                if not 0 <= label < num_classes:
                    raise TooFewOfAClass(
                        f"data.partition ClassCounts: client {client} names class {label}, but the data have "
                        f"{num_classes} classes, 0 to {num_classes - 1}; correct counts"
                    )
                table[client, label] = number
        available = np.bincount(labels, minlength=num_classes)
        for label in np.flatnonzero(table.sum(0) > available).tolist():
            raise TooFewOfAClass(
                f"data.partition ClassCounts: all clients together ask for {table[:, label].sum()} samples of class "
                f"{label}, but the data have {available[label]}; lower counts"
            )
        return Assignment(split_by_counts(table, labels, num_classes, numpy_stream(seed, "partition")))
