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
from dfl_lightning.utils.random_streams import stream, stream_seed

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

    def order(self, owner: int, epoch: int, samples: int) -> torch.Tensor:
        """The order in which an epoch takes a client's samples, a fresh permutation: int64 [samples].

        Args:
            owner: the client.
            epoch: of the client's training in this round, 0-based.
            samples: how many it has.
        """
        return torch.randperm(samples, generator=self._stream("batches", owner, epoch))

    def orders(self, owners: np.ndarray, epochs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """The orders of several epochs, one after the other, int64 [sum of `samples`]; see `order`.

        Args:
            owners: the client of each epoch, int64 [n].
            epochs: int64 [n].
            samples: how many each client has, int64 [n].
        """
        words = zip(owners.tolist(), epochs.tolist(), samples.tolist(), strict=True)
        return np.concatenate([np.empty(0, np.int64), *(self.order(*each).numpy() for each in words)])

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
