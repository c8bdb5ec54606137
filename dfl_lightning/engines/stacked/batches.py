"""The batches of a cohort, in the order in which they are taken."""

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
    """The next batch of k clients.

    Args:
        inputs: [k, B, ...].
        labels: int64 [k, B].
        sizes: real samples of each client; its further ones repeat one of its own and count for nothing.
        counts: the same where the data are, int64 [k].
        weights: of samples in their client's mean, [k, B]: 1 / b for each of b real ones, 0 for padding.
        padded: whether a client may have fewer than B real ones.
        masks: keys of the dropout layers' masks, int32 [k, 2].
        exact: whether `sizes` are the real ones; not where a GPU alone knows them.
        attached: further numbers for each sample, by name, [k, B, ...] each.
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
        """The same batch with further numbers for each sample."""
        return replace(self, attached={**self.attached, **tensors})

    @property
    def per_sample(self) -> dict[str, Tensor]:
        """Inputs, labels and what was attached."""
        return {"inputs": self.inputs, "labels": self.labels, **self.attached}


class BatchSource(Protocol):
    """Where a job's batches come from."""

    def next(self, clients: int) -> StackedBatch:
        """The next batch of each of the first `clients`."""


class Feed:
    """The clients' batches: whole epochs, drawn at the beginning of a phase.

    The indices of all steps are put together on the CPU and sent to the data's device in one go: a step then waits for
    nothing.

    Args:
        context: what the jobs of an engine have in common.
        owners: the clients, by falling number of batches.
        training: names the draws.

    Attributes:
        taken: batches of the phase that have been taken.
        masks: keys of the dropout layers' masks for the last batch, int32 [k, 2].
        drawn: what the augmentation has drawn for the last batch, [k, B, d]; None where nothing is augmented.
    """

    def __init__(self, context: StackedContext, owners: Sequence[int] | np.ndarray, training: Training) -> None:
        self._context, self._owners = context, np.asarray(owners, dtype=np.int64)
        self._draws = training.draws(context.config.seed)
        self._samples: np.ndarray = context.data.train.counts.numpy()[self._owners]
        self._per_epoch = batches_of(self._samples, context.config.batch_size)
        self._begun = np.zeros_like(self._owners)  # epochs of former phases
        self._epochs = np.zeros_like(self._owners)  # of this one, so far
        self.masks = torch.zeros(len(owners), 2, dtype=torch.int32, device=context.data.images.device)
        self.drawn: Tensor | None = None

    def draw(self, duration: Duration) -> None:
        """Begin a phase: so many batches for every client."""
        self._begun = self._begun + self._epochs
        self.taken = 0  # batches, in this phase
        each, clients = np.unique(self._per_epoch, return_inverse=True)
        numbers = [(duration.batches(number), duration.epochs_drawn(number)) for number in each.tolist()]
        ends, self._epochs = np.array(numbers, dtype=np.int64).reshape(-1, 2)[clients].T
        self._ends: list[int] = ends.tolist()  # where each client's phase does
        self._waiting = len(self._owners)
        self._lay_out()

    @property
    def steps(self) -> int:
        """Batches that have been drawn for the client with most of them."""
        return len(self._index)

    def waiting(self) -> int:
        """How many clients have batches of the phase left, whatever a step drew beyond; they are the first ones."""
        while self._waiting and self._ends[self._waiting - 1] <= self.taken:
            self._waiting -= 1
        return self._waiting

    def whole(self, clients: int, batches: int) -> bool:
        """Whether the next batches have all been drawn and are of full size.

        Args:
            clients: the first so many.
            batches: of each.
        """
        sizes = self._sizes[self.taken : self.taken + batches, :clients]
        return len(sizes) == batches and bool((sizes == self._context.config.batch_size).all())

    def take(self, clients: int) -> tuple[Tensor, Tensor, list[int]]:
        """Indices [k, B] of the next batch of the first `clients`, and how many are real: as [k] and as a list.

        What is random about that batch is in `masks` and `drawn` then.
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
            self.masks = sent(self._draws.masks_of(self._words(clients, step)), data.images.device)
        if augment is not None:
            generators = (self._draws.augmentation(*words) for words in self._words(clients, step))
            parts = [augment.draw(size, generator) for size, generator in zip(sizes, generators, strict=True)]
            whole = [_padded(part, self._context.config.batch_size) for part in parts]
            self.drawn = sent(torch.stack(whole), data.images.device)
        return self._index[step, :clients], self._counts[step, :clients], sizes

    def next(self, clients: int) -> StackedBatch:
        """The same with samples and labels, as long as the largest."""
        context, data, step = self._context, self._context.data, self.taken
        indices, counts, sizes = self.take(clients)
        longest = max(sizes)
        indices, weights = indices[:, :longest], self._weights[step, :clients, :longest]
        drawn = None if self.drawn is None else self.drawn[:, :longest]
        inputs, labels = data.batch(indices, dtype=context.config.dtype, draws=drawn)
        return StackedBatch(inputs, labels, sizes, counts, weights, min(sizes) < longest, self.masks[:clients])

    def _words(self, clients: int, step: int) -> list[tuple[int, int, int]]:
        """What names the draws of a step: owner, epoch and step of the epoch."""
        epochs, steps = np.divmod(step, self._per_epoch[:clients])
        words = self._owners[:clients], self._begun[:clients] + epochs, steps
        return list(zip(*(word.tolist() for word in words), strict=True))

    def _lay_out(self) -> None:
        """All batches of the phase as one tensor [steps, clients, B]."""
        config, data, epochs = self._context.config, self._context.data, self._epochs
        clients = np.arange(len(self._owners)).repeat(epochs)  # one for each epoch of theirs
        numbers = np.arange(len(clients)) + (self._begun - (epochs.cumsum() - epochs)).repeat(epochs)
        orders = self._draws.orders(self._owners[clients], numbers, self._samples[clients])
        owners = self._owners.repeat(epochs * self._samples)
        samples = data.train.at(torch.from_numpy(owners), torch.from_numpy(orders)).numpy()
        places, self._sizes = places_of_batches(self._samples, epochs, config.batch_size)
        device = data.images.device
        self._index = sent(torch.from_numpy(samples[places]), device)
        self._counts = sent(torch.from_numpy(self._sizes), device)
        self._weights = sample_weights(self._counts, config.batch_size, config.dtype)


def places_of_batches(samples: np.ndarray, epochs: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where batches find their samples, if those of all epochs of the first client come first, and so on.

    Args:
        samples: of an epoch of each client, int64 [k].
        epochs: of each client, int64 [k].
        batch_size: B.

    Returns:
        Places, int64 [steps, k, B], and how many of them are real, int64 [steps, k]. The last batch of an epoch may
        have fewer than B, and repeats its first one; after its epochs a client has none, and 0 takes their place.

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
    """A tensor of the CPU on another device; a copy to a GPU is asynchronous.

    Args:
        tensor: on the CPU.
        device: where it goes.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _padded(part: Tensor, length: int) -> Tensor:
    """[b, ...] -> [length, ...], repeating the first entry: never another client's sample, whose NaN would spread."""
    missing = length - len(part)
    return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part
