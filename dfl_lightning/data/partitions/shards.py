"""A partition by blocks of samples in the order of their labels."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["Shards"]


class Shards(Partition):
    """Random shards of samples that are sorted by label (McMahan et al. 2017, section 3).

    Within a label the order is random. Sizes of shards are as equal as possible, and clients draw different shards.
    FL-FDMS' general setting (section 6.1.1) is 20 clients with `per_client=2, shards=200`; its other levels (6.5) are
    `per_client=1, shards=100` and `per_client=5, shards=500`.

    Args:
        per_client: number of shards of each client.
        shards: number of shards; null means as many as the clients draw, so that all samples are used. With more, the
            samples of the other shards are left out.
    """

    def __init__(self, per_client: int = 2, shards: int | None = None) -> None:
        if per_client < 1:
            raise UserError(f"data.partition Shards: per_client must be at least 1, not {per_client}")
        self.per_client = per_client
        self.shards = shards

    def describe(self) -> str:
        """Describe the partition, for example `Shards(2)` or `Shards(2 of 200)`."""
        return f"Shards({self.per_client}{'' if self.shards is None else f' of {self.shards}'})"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Divide the samples by their labels; see `Partition.assign`."""
        drawn = num_clients * self.per_client
        shards = drawn if self.shards is None else self.shards
        if not drawn <= shards <= len(labels):
            raise UserError(
                f"data.partition {self.describe()}: {num_clients} clients draw {drawn} shards in all, but "
                f"{len(labels)} samples are cut into {shards}; change shards, per_client or num_clients"
            )
        rng = numpy_stream(seed, "partition")
        shuffled = rng.permutation(len(labels))
        cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], shards)
        hands = rng.permutation(shards)[:drawn].reshape(num_clients, self.per_client)
        return Assignment([np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in hands])
