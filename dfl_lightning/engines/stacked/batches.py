"""Batches of a cohort, in the order of the training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.engines.draws import batches_of
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.local_work import Attached, Duration
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.loss import sample_weights


@dataclass(frozen=True)
class StackedBatch(Attached):
    """Batch of k clients.

    Args:
        inputs: [k, B, ...].
        labels: int64 [k, B].
        sizes: number of real samples of each client; its other samples are padding, repetitions of one of them.
        counts: the same numbers on the device of the data, int64 [k].
        weights: weights of samples in their client's mean, [k, B]: 1 / b for each of b real samples, 0 for padding.
        padded: True if a client may have fewer than B real samples.
        masks: keys of the dropout layers' masks, int32 [k, 2].
        exact: True if `sizes` are exact; False in recorded steps, where only the GPU has the numbers.
        attached: further tensors by name, [k, B, ...] each.
    """

    inputs: Tensor
    labels: Tensor
    sizes: list[int]
    counts: Tensor
    weights: Tensor
    padded: bool
    masks: Tensor
    exact: bool = True
    attached: dict[str, Tensor] = field(default_factory=dict)

    def attach(self, **tensors: Tensor) -> Self:
        """Return the batch with further tensors, [k, B, ...] each, which a loss can read as attributes."""
        return replace(self, attached={**self.attached, **tensors})

    @property
    def per_sample(self) -> dict[str, Tensor]:
        """Inputs, labels and attached tensors, by name."""
        return {"inputs": self.inputs, "labels": self.labels, **self.attached}


class BatchSource(Protocol):
    """Source of a job's batches."""

    def next(self, clients: int) -> StackedBatch:
        """Return the next batch of the first `clients` clients."""


class Feed:
    """Source of the clients' batches, which draws whole epochs at the beginning of a phase.

    The sample indices of all steps are computed on the CPU and sent to the data's device at once, so that a step does
    not wait for them.

    Args:
        context: the parts that all jobs of the engine share.
        owners: the clients, by falling number of batches.
        training: names the draws; see `Training`.

    Attributes:
        taken: number of batches of the phase that have been taken.
        masks: keys of the dropout layers' masks for the last batch, int32 [k, 2].
        drawn: random numbers of the augmentation for the last batch, [k, B, d]; None without augmentation.
    """

    def __init__(self, context: StackedContext, owners: Sequence[int] | np.ndarray, training: Training) -> None:
        self._context, self._owners = context, np.asarray(owners, dtype=np.int64)
        self._draws = training.draws(context.config.seed)
        self._samples: np.ndarray = context.data.train.counts.numpy()[self._owners]
        self._batch_size = training.batch_size or context.config.batch_size
        self._per_epoch = batches_of(self._samples, self._batch_size)
        self._begun = np.zeros_like(self._owners)  # Number of epochs of earlier phases.
        self._epochs = np.zeros_like(self._owners)  # Number of epochs of this phase that have been drawn.
        self.masks = torch.zeros(len(owners), 2, dtype=torch.int32, device=context.data.images.device)
        self.drawn: Tensor | None = None

    def draw(self, duration: Duration) -> None:
        """Begin a phase of this duration, and draw its batches for all clients."""
        self._begun = self._begun + self._epochs
        self.taken = 0
        each, clients = np.unique(self._per_epoch, return_inverse=True)
        numbers = [(duration.batches(number), duration.epochs_drawn(number)) for number in each.tolist()]
        ends, self._epochs = np.array(numbers, dtype=np.int64).reshape(-1, 2)[clients].T
        self._ends: list[int] = ends.tolist()  # Number of each client's batches in the phase.
        self._waiting = len(self._owners)
        self._lay_out()

    @property
    def steps(self) -> int:
        """Number of batches that have been drawn for the client with the most batches."""
        return len(self._index)

    def waiting(self) -> int:
        """Count the clients with batches of the phase left; they are the first ones."""
        while self._waiting and self._ends[self._waiting - 1] <= self.taken:
            self._waiting -= 1
        return self._waiting

    def whole(self, clients: int, batches: int) -> bool:
        """Return True if the next batches have all been drawn and are of full size.

        Args:
            clients: number of the first clients that are asked for.
            batches: number of batches of each client.
        """
        sizes = self._sizes[self.taken : self.taken + batches, :clients]
        return len(sizes) == batches and bool((sizes == self._batch_size).all())

    def take(self, clients: int) -> tuple[Tensor, Tensor, list[int]]:
        """Take the next batch of the first `clients` clients, and set `masks` and `drawn` for it.

        Returns:
            The samples' indices [k, B], and the number of real samples of each client, as a tensor [k] and as a list.
        """
        step = self.taken
        late = np.flatnonzero((self._epochs * self._per_epoch)[:clients] == step)
        if len(late):
            self._epochs[late] += 1
            self._lay_out()
        self.taken += 1
        sizes: list[int] = self._sizes[step, :clients].tolist()
        data, augment = self._context.data, self._context.data.augment
        if self._context.network.has_dropout:
            self.masks = sent(self._draws.masks_of(self._names(clients, step)), data.images.device)
        if augment is not None:
            generators = (self._draws.augmentation(*names) for names in self._names(clients, step))
            parts = [augment.draw(size, generator) for size, generator in zip(sizes, generators, strict=True)]
            whole = [_padded(part, self._batch_size) for part in parts]
            self.drawn = sent(torch.stack(whole), data.images.device)
        return self._index[step, :clients], self._counts[step, :clients], sizes

    def next(self, clients: int) -> StackedBatch:
        """Take the next batch of the first `clients` clients with inputs and labels; B is the largest client's size."""
        context, data, step = self._context, self._context.data, self.taken
        indices, counts, sizes = self.take(clients)
        longest = max(sizes)
        indices, weights = indices[:, :longest], self._weights[step, :clients, :longest]
        drawn = None if self.drawn is None else self.drawn[:, :longest]
        inputs, labels = data.batch(indices, dtype=context.config.dtype, draws=drawn)
        return StackedBatch(inputs, labels, sizes, counts, weights, min(sizes) < longest, self.masks[:clients])

    def _names(self, clients: int, step: int) -> list[tuple[int, int, int]]:
        """Return the names of each client's draws in a step: (owner, epoch, step of the epoch)."""
        epochs, steps = np.divmod(step, self._per_epoch[:clients])
        parts = self._owners[:clients], self._begun[:clients] + epochs, steps
        return list(zip(*(part.tolist() for part in parts), strict=True))

    def _lay_out(self) -> None:
        """Draw the orders of samples of the phase's epochs, and cut them into batches, [steps, clients, B]."""
        config, data, epochs = self._context.config, self._context.data, self._epochs
        clients = np.arange(len(self._owners)).repeat(epochs)  # The client of each epoch.
        numbers = np.arange(len(clients)) + (self._begun - (epochs.cumsum() - epochs)).repeat(epochs)
        orders = self._draws.orders(self._owners[clients], numbers, self._samples[clients])
        owners = self._owners.repeat(epochs * self._samples)
        samples = data.train.at(torch.from_numpy(owners), torch.from_numpy(orders)).numpy()
        places, self._sizes = places_of_batches(self._samples, epochs, self._batch_size)
        device = data.images.device
        self._index = sent(torch.from_numpy(samples[places]), device)
        self._counts = sent(torch.from_numpy(self._sizes), device)
        self._weights = sample_weights(self._counts, self._batch_size, config.dtype)


def places_of_batches(samples: np.ndarray, epochs: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the positions of all batches' samples in a list with the samples of all epochs of the first client first.

    Args:
        samples: number of samples in an epoch of each client, int64 [k].
        epochs: number of epochs of each client, int64 [k].
        batch_size: samples of a whole batch, B.

    Returns:
        Positions, int64 [steps, k, B], and the number of real ones, int64 [steps, k]. The last batch of an epoch may
        have fewer than B samples, and is padded by its first one; after its last epoch a client has positions 0.

    Examples:
        >>> places, sizes = places_of_batches(np.array([3, 2]), np.array([1, 1]), 2)
        >>> places.tolist(), sizes.tolist()
        ([[[0, 1], [3, 4]], [[2, 2], [0, 0]]], [[2, 2], [1, 0]])
    """
    per_epoch, drawn = batches_of(samples, batch_size), epochs * samples
    steps = np.arange((epochs * per_epoch).max(initial=0))[:, None]
    epoch, batch = np.divmod(steps, per_epoch.clip(1))
    sizes = np.where(epoch < epochs, (samples - batch * batch_size).clip(0, batch_size), 0)
    begins = np.where(sizes, drawn.cumsum() - drawn + epoch * samples + batch * batch_size, 0)
    columns = np.arange(batch_size)
    return begins[:, :, None] + np.where(columns < sizes[:, :, None], columns, 0), sizes


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Send a tensor from the CPU to a device; the copy to a GPU is asynchronous."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _padded(part: Tensor, length: int) -> Tensor:
    """Pad [b, ...] to [length, ...] by its first entry; another client's sample could spread NaN."""
    missing = length - len(part)
    return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part
