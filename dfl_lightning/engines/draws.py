"""Random draws of local training: orders of samples, keys of dropout masks, generators of augmentations.

Every draw is named by round, client, epoch and step. So a client draws the same in both engines, in any cohort and with
any number of threads.
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
    """Named draws of one call of an engine.

    Args:
        seed: the run's seed.
        purpose: name of the call, for example `local` or `finetune`.
        round: 0-based.
        cycles: number of each client's own training, long [m], which names its draws instead of the round; None: the
            round names them.
    """

    seed: int
    purpose: str
    round: int
    cycles: torch.Tensor | None = None

    def number(self, owner: int) -> int:
        """Return the number that names a client's draws: that of its own training, or the round."""
        return self.round if self.cycles is None else int(self.cycles[owner])

    def orders_of(self, owner: int, first: int, epochs: int, samples: int) -> torch.Tensor:
        """Draw a permutation of a client's samples for each of several epochs, int64 [epochs, samples].

        Args:
            owner: the client.
            first: the first of the epochs, 0-based in the client's training in this round.
            epochs: number of epochs.
            samples: number of the client's samples.
        """
        each = np.ones(epochs, dtype=np.int64)
        flat = self.orders(owner * each, np.arange(first, first + epochs), samples * each)
        return torch.from_numpy(flat).view(epochs, samples)

    def orders(self, owners: np.ndarray, epochs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Draw a permutation for each of n epochs of any clients, one behind the other: int64 [sum of `samples`].

        Args:
            owners: the client of each epoch, int64 [n], below 2^31.
            epochs: number of each epoch in its client's training in this round, 0-based, int64 [n], below 2^32.
            samples: number of samples of each epoch's client, int64 [n].

        Examples:
            >>> draws = Draws(0, "local", round=1)
            >>> draws.orders(np.array([7, 8]), np.array([0, 0]), np.array([3, 5])).tolist()
            [2, 0, 1, 4, 3, 0, 2, 1]
            >>> draws.orders_of(8, first=0, epochs=1, samples=5).tolist()
            [[4, 3, 0, 2, 1]]
        """
        keys = splitmix64((owners << 32) + epochs, self._seeds(f"{self.purpose} batches", owners))
        return permutations(keys, samples)

    def _seeds(self, purpose: str, owners: np.ndarray) -> np.ndarray | int:
        """Return the seed of a purpose in the round, or in the own training of each owner, int64 [n]."""
        if self.cycles is None:
            return stream_seed(self.seed, purpose, self.round)
        numbers, index = np.unique(self.cycles.numpy()[owners], return_inverse=True)
        return np.array([stream_seed(self.seed, purpose, number) for number in numbers.tolist()], dtype=np.int64)[index]

    def masks(self, owner: int, epoch: int, step: int) -> torch.Tensor:
        """Return the key of the dropout layers' masks in one step of a client, int32 [2].

        Args:
            owner: the client.
            epoch: 0-based in the client's training in this round.
            step: 0-based in the epoch.
        """
        return self.masks_of([(owner, epoch, step)])[0]

    def masks_of(self, steps: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Return the keys of the dropout masks of several clients, int32 [k, 2], for (owner, epoch, step) of each."""
        purpose = f"{self.purpose} dropout layers"
        return mask_keys([stream_seed(self.seed, purpose, self.number(each[0]), *each) for each in steps])

    def augmentation(self, owner: int, epoch: int, step: int) -> torch.Generator:
        """Return the generator from which the augmentation of one batch draws.

        Args:
            owner: the client.
            epoch: 0-based in the client's training in this round.
            step: 0-based in the epoch.
        """
        return stream(self.seed, f"{self.purpose} augment", self.number(owner), owner, epoch, step)


class OrdersAhead:
    """Orders of the first epochs of several clients, drawn together: for one client alone it takes as long as for ten.

    Args:
        draws: the draws.
        owners: the clients.
        epochs: number of epochs of each, from the first one on.
        samples: number of samples of each.

    Examples:
        >>> draws = Draws(0, "local", round=1)
        >>> ahead = OrdersAhead(draws, [7, 8], [1, 1], [3, 5])
        >>> ahead.of(8, first=0, epochs=1, samples=5).tolist() == draws.orders_of(8, 0, 1, 5).tolist()
        True
    """

    def __init__(self, draws: Draws, owners: Sequence[int], epochs: Sequence[int], samples: Sequence[int]) -> None:
        self._draws = draws
        counts, numbers = np.array(epochs, dtype=np.int64), np.array(samples, dtype=np.int64)
        epoch = np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(count) for count in counts)])
        flat = torch.from_numpy(draws.orders(np.array(owners).repeat(counts), epoch, numbers.repeat(counts)))
        parts = flat.split((counts * numbers).tolist())
        self._of = {
            owner: part.view(count, -1) for owner, part, count in zip(owners, parts, epochs, strict=True) if count
        }

    def of(self, owner: int, first: int, epochs: int, samples: int) -> torch.Tensor:
        """Return the orders of some epochs, those drawn ahead or others; see `Draws.orders_of`.

        Args:
            owner: the client.
            first: the first of the epochs.
            epochs: number of epochs.
            samples: number of the client's samples.
        """
        known = self._of.get(owner)
        if known is None or first + epochs > len(known):
            return self._draws.orders_of(owner, first, epochs, samples)
        return known[first : first + epochs]


def batches_of(samples: Whole, batch_size: int) -> Whole:
    """Count the batches of an epoch; the last one may be smaller.

    Args:
        samples: number of samples of one client, or an array with those of several clients.
        batch_size: samples of a whole batch.

    Examples:
        >>> batches_of(33, 16), batches_of(0, 16), batches_of(np.array([16, 17]), 16).tolist()
        (3, 0, [1, 2])
    """
    return -(-samples // batch_size)
