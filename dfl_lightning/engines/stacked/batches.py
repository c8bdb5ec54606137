"""The batches of a cohort, in the order in which they are taken."""

from __future__ import annotations

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

    def __init__(self, context: StackedContext, owners: list[int], training: Training) -> None:
        self._context, self._owners = context, owners
        self._draws = training.draws(context.config.seed)
        self._samples = [context.data.train[owner] for owner in owners]
        self._per_epoch = [batches_of(len(samples), context.config.batch_size) for samples in self._samples]
        self._epochs = [0] * len(owners)  # drawn so far
        self.masks = torch.zeros(len(owners), 2, dtype=torch.int32, device=context.data.images.device)
        self.drawn: Tensor | None = None

    def draw(self, duration: Duration) -> None:
        """Begin a phase: so many batches for every client."""
        self._begun = [drawn * each for drawn, each in zip(self._epochs, self._per_epoch, strict=True)]
        self.taken = 0  # batches, in this phase
        self._ends = [duration.batches(each) for each in self._per_epoch]  # where each client's phase does
        self._waiting = len(self._owners)
        self._sizes: list[list[int]] = [[] for _ in self._owners]
        self._shuffled: list[list[np.ndarray]] = [[] for _ in self._owners]  # an epoch after the other
        for client in range(len(self._owners)):
            for _ in range(duration.epochs_drawn(self._per_epoch[client])):
                self._one_more_epoch(client)
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
        size, stop = self._context.config.batch_size, self.taken + batches
        return all(sizes[self.taken : stop] == [size] * batches for sizes in self._sizes[:clients])

    def take(self, clients: int) -> tuple[Tensor, Tensor, list[int]]:
        """Indices [k, B] of the next batch of the first `clients`, and how many are real: as [k] and as a list.

        What is random about that batch is in `masks` and `drawn` then.
        """
        step = self.taken
        late = [client for client, sizes in enumerate(self._sizes[:clients]) if len(sizes) == step]
        for client in late:
            self._one_more_epoch(client)
        if late:
            self._lay_out()
        self.taken += 1
        sizes = [sizes[step] for sizes in self._sizes[:clients]]
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
        places = [begun + step for begun in self._begun[:clients]]
        return [(self._owners[i], *divmod(place, self._per_epoch[i])) for i, place in enumerate(places)]

    def _one_more_epoch(self, client: int) -> None:
        samples, size = self._samples[client], self._context.config.batch_size
        if not len(samples):
            return
        order = self._draws.order(self._owners[client], self._epochs[client], len(samples))
        self._epochs[client] += 1
        self._shuffled[client].append(samples.numpy()[order.numpy()])
        whole, rest = divmod(len(samples), size)
        self._sizes[client] += [size] * whole + [rest] * (rest > 0)

    def _lay_out(self) -> None:
        """All batches of the phase as one tensor [steps, clients, B]; numpy is much faster at many small pieces."""
        size, device = self._context.config.batch_size, self._context.data.images.device
        steps = max(map(len, self._sizes), default=0)
        index = np.zeros((len(self._owners), steps * size), dtype=np.int64)
        counts = np.zeros((len(self._owners), steps), dtype=np.int64)
        for line, count, sizes, epochs, batches in zip(
            index, counts, self._sizes, self._shuffled, self._per_epoch, strict=True
        ):
            count[: len(sizes)] = sizes
            for number, shuffled in enumerate(epochs):
                begin, end = number * batches * size, (number + 1) * batches * size
                line[begin : begin + len(shuffled)] = shuffled
                line[begin + len(shuffled) : end] = shuffled[(batches - 1) * size]  # one of its own
        laid_out = torch.from_numpy(index).view(len(self._owners), steps, size).transpose(0, 1).contiguous()
        self._index, self._counts = sent(laid_out, device), sent(torch.from_numpy(counts).T.contiguous(), device)
        self._weights = sample_weights(self._counts, size, self._context.config.dtype)


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
