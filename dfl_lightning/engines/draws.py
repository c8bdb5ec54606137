"""The draws of local training: which samples make a client's next batch, and what is random about a step.

Every draw is named by round, client, epoch and step, so that both engines, any company and any number of threads draw
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from dfl_lightning.engines.dropout_layers import mask_keys
from dfl_lightning.utils.randomness.permutations import permutations
from dfl_lightning.utils.randomness.random_streams import stream, stream_seed
from dfl_lightning.utils.randomness.splitmix import splitmix64

Whole = TypeVar("Whole", int, np.ndarray)


@dataclass(frozen=True)
class Draws:
    """The named draws of one call of an engine.

    Args:
        seed: the run's seed.
        purpose: `local` or `finetune` for example.
        round: 0-based.
    """

    seed: int
    purpose: str
    round: int

    def orders_of(self, owner: int, first: int, epochs: int, samples: int) -> torch.Tensor:
        """The orders in which epochs take a client's samples, a fresh permutation each: int64 [epochs, samples].

        Args:
            owner: the client.
            first: of the epochs of the client's training in this round, 0-based.
            epochs: how many.
            samples: how many it has.
        """
        each = np.ones(epochs, dtype=np.int64)
        flat = self.orders(owner * each, np.arange(first, first + epochs), samples * each)
        return torch.from_numpy(flat).view(epochs, samples)

    def orders(self, owners: np.ndarray, epochs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """The same for epochs of any clients, int64 [sum of `samples`]: all of the first one, and so on.

        Args:
            owners: the client of each epoch, int64 [n], below 2^31.
            epochs: int64 [n], below 2^32.
            samples: how many each client has, int64 [n].

        Examples:
            >>> draws = Draws(0, "local", round=1)
            >>> draws.orders(np.array([7, 8]), np.array([0, 0]), np.array([3, 5])).tolist()
            [2, 0, 1, 4, 3, 0, 2, 1]
            >>> draws.orders_of(8, first=0, epochs=1, samples=5).tolist()
            [[4, 3, 0, 2, 1]]
        """
        keys = splitmix64((owners << 32) + epochs, stream_seed(self.seed, f"{self.purpose} batches", self.round))
        return permutations(keys, samples)

    def masks(self, owner: int, epoch: int, step: int) -> torch.Tensor:
        """The key of the dropout layers' masks in one step, int32 [2].

        Args:
            owner: the client.
            epoch: of the client's training in this round, 0-based.
            step: of the epoch, 0-based.
        """
        return self.masks_of([(owner, epoch, step)])[0]

    def masks_of(self, words: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """The keys of several clients, int32 [k, 2], for an owner, epoch and step of each."""
        purpose = f"{self.purpose} dropout layers"
        return mask_keys([stream_seed(self.seed, purpose, self.round, *each) for each in words])

    def augmentation(self, owner: int, epoch: int, step: int) -> torch.Generator:
        """The generator from which the augmentation of one batch draws.

        Args:
            owner: the client.
            epoch: of the client's training in this round, 0-based.
            step: of the epoch, 0-based.
        """
        return self._stream("augment", owner, epoch, step)

    def _stream(self, what: str, owner: int, *words: int) -> torch.Generator:
        return stream(self.seed, f"{self.purpose} {what}", self.round, owner, *words)


def batches_of(samples: Whole, batch_size: int) -> Whole:
    """Batches of an epoch; the last one may be smaller.

    Args:
        samples: of the client, or of several.
        batch_size: B.

    Examples:
        >>> batches_of(33, 16), batches_of(0, 16), batches_of(np.array([16, 17]), 16).tolist()
        (3, 0, [1, 2])
    """
    return -(-samples // batch_size)
