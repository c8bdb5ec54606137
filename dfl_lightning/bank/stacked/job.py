"""The local training of one cohort: what an objective's `step` works on, for k clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.batches import batches_of
from dfl_lightning.bank.engine import EngineConfig, Training
from dfl_lightning.bank.jobs import References
from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.stacked.layers import Pass
from dfl_lightning.bank.stacked.loss import StackedLoss
from dfl_lightning.bank.stacked.network import StackedNetwork
from dfl_lightning.bank.stacked.optimizer import PrefixOptimizer
from dfl_lightning.bank.stacked.staging import Staging, unpack
from dfl_lightning.bank.threads import Workers
from dfl_lightning.data import ClientData

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank
    from dfl_lightning.objectives import Phase


@dataclass(frozen=True)
class Workshop:
    """What the jobs of an engine have in common.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.
        network: the stacked forward pass.
        loss: the stacked loss.
    """

    config: EngineConfig
    layout: Layout
    data: ClientData
    network: StackedNetwork
    loss: StackedLoss


@dataclass(frozen=True)
class Batch:
    """The next batch of k clients.

    Args:
        inputs: [k, B, ...].
        labels: int64 [k, B].
        sizes: real samples of each client; its further ones repeat one of its own and count for nothing.
    """

    inputs: Tensor
    labels: Tensor
    sizes: list[int]


class StackedJob:
    """Local training of a cohort; the `ctx` of an objective's `step`.

    Clients are sorted by falling number of batches: those with batches left are the first k, and everything that an
    objective sees has these k in front.

    Args:
        shop: what the jobs of an engine have in common.
        bank: where models start from.
        references: the starts, sorted by `order_of_work`.
        training: see `Training`.
        pool: asked now and then whether the work is still wanted.
    """

    def __init__(self, shop: Workshop, bank: Bank, references: References, training: Training, pool: Workers) -> None:
        self._shop, self._bank, self._references, self._pool = shop, bank, references, pool
        self._training = training
        self._staging = Staging(shop.layout, bank.materialise(references))
        self._whole = self._staging.parameters()
        self._kept: dict[str, list[Tensor]] = {}  # row sets that the objective asked for
        self._feed = Feed(shop, references.owners.tolist(), training)
        count = len(references)
        self._clients = count
        self.losses, self.samples = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.long)
        self.params: list[Tensor] = self._whole

    # --- what an objective sees --------------------------------------------------------------------------------------
    @property
    def start(self) -> list[Tensor]:
        """The parameters at the start of the job."""
        return self._first(self._read("", self._references))

    def rows(self, name: str) -> list[Tensor]:
        """The owners' rows of a row set, [k, *shape] for each parameter."""
        return self._first(self._read(name, References.rows(name, self._references.owners)))

    def next_batch(self) -> Batch:
        """The next batch of the first k clients; one more epoch is drawn for whom all are taken."""
        return self._feed.next(self._clients)

    def grad(self, params: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """Gradients of each client's mean loss at `params`, [k, *shape] each."""
        parts = [self._gradients(params, batch, first, stop) for first, stop in self._stretches(batch)]
        return parts[0] if len(parts) == 1 else [torch.cat(several) for several in zip(*parts, strict=True)]

    def update(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """One optimizer step of the phase's columns, after each client's own clipping."""
        config = self._shop.config
        trained = [(p, g) for p, g, wanted in zip(params, grads, self._trained, strict=True) if wanted]
        clipped = [g for _, g in trained]
        if config.clip_norm is not None:
            clipped = clip_norms(clipped, config.clip_norm)
        if config.clip_value is not None:
            clipped = [g.clamp(-config.clip_value, config.clip_value) for g in clipped]
        self._optimizer.step([p for p, _ in trained], clipped)

    # --- the job itself -----------------------------------------------------------------------------------------------
    def run(self) -> Staging:
        """All phases."""
        for phase in self._training.phases:
            if phase.epochs:
                self._run(phase)
        return self._staging

    def _run(self, phase: Phase) -> None:
        self._freeze(phase.columns)
        kept = {
            entry.name: self._staging.tensors[entry.name].clone()
            for entry in self._shop.layout.entries
            if entry.is_buffer and not phase.columns.holds(entry)
        }  # buffers move in a forward pass even where nothing is trained
        self._optimizer = PrefixOptimizer(self._shop.config.optimizer, self._training.lr)
        self.losses.zero_(), self.samples.zero_()  # reported: the last phase
        self._feed.draw(phase.epochs)
        while self._narrow():
            self._pool.check()
            phase.objective.step(self)
        for name, tensor in kept.items():
            self._staging.tensors[name].copy_(tensor)

    def mean_gradients(self) -> list[Tensor]:
        """Gradients of each client's mean loss over its data (or its first batches), [c, *shape] each."""
        self._freeze(self._shop.layout.all)
        self._feed.draw(1)
        total = [torch.zeros_like(p) for p in self._whole]
        taken = 0
        while self._narrow() and taken != self._training.batches:
            self._pool.check()
            taken += 1
            batch = self.next_batch()
            sizes = torch.tensor(batch.sizes, device=total[0].device)
            for t, g in zip(total, self.grad(self.params, batch), strict=True):
                t[: self._clients] += g * sizes.view(-1, *[1] * (g.dim() - 1))
        samples = self.samples.clamp(min=1).to(total[0].device)
        return [t / samples.view(-1, *[1] * (t.dim() - 1)) for t in total]

    def _narrow(self) -> bool:
        """Look at the clients with batches left only; False where nobody is left."""
        clients = self._feed.waiting()
        if clients and clients != len(self.params[0]):
            self.params = [p[:clients] for p in self._whole]
        self._clients = clients
        return bool(clients)

    def _freeze(self, columns: Columns) -> None:
        """Only entries inside `columns` are trained."""
        entries = [entry for entry in self._shop.layout.entries if not entry.is_buffer]
        self._trained = [entry.trainable and columns.holds(entry) for entry in entries]

    def _first(self, tensors: list[Tensor]) -> list[Tensor]:
        return [t[: self._clients] for t in tensors]

    def _read(self, name: str, references: References) -> list[Tensor]:
        if name not in self._kept:
            self._kept[name] = unpack(self._shop.layout, self._bank.materialise(references))
        return self._kept[name]

    # --- gradients ----------------------------------------------------------------------------------------------------
    def _stretches(self, batch: Batch) -> list[tuple[int, int]]:
        """Clients [first, stop) that go through the network together.

        All of them, unless the samples of a batch meet (batch norms): padding would take part then, so that only
        neighbours with equally many samples go together.
        """
        if not self._shop.network.couples_samples:
            return [(0, len(batch.sizes))]
        stretches, first = [], 0
        for _, same in groupby(batch.sizes):
            stop = first + len(list(same))
            stretches.append((first, stop))
            first = stop
        return stretches

    def _gradients(self, params: Sequence[Tensor], batch: Batch, first: int, stop: int) -> list[Tensor]:
        shop, sizes = self._shop, batch.sizes[first:stop]
        longest = max(sizes)
        leaves = [
            p[first:stop].detach().requires_grad_(wanted) for p, wanted in zip(params, self._trained, strict=True)
        ]
        entries = [entry for entry in shop.layout.entries if not entry.is_buffer]
        tensors = {entry.name: leaf for entry, leaf in zip(entries, leaves, strict=True)}
        for entry in shop.layout.entries:
            if entry.is_buffer:
                tensors[entry.name] = self._staging.tensors[entry.name][first:stop]
        padded = sizes if min(sizes) < longest else None
        now = Pass(tensors, True, self._feed.masks[first:stop], padded)
        scores = shop.network(now, batch.inputs[first:stop, :longest])
        losses = shop.loss(scores, batch.labels[first:stop, :longest], sizes)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        grads = iter(torch.autograd.grad(losses.sum(), wanted, allow_unused=True))
        counts = torch.tensor(sizes)
        self.losses[first:stop] += losses.detach().double().cpu() * counts
        self.samples[first:stop] += counts
        found = [next(grads) if leaf.requires_grad else None for leaf in leaves]
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


class Feed:
    """The clients' batches, in the order in which they are taken.

    Args:
        shop: what the jobs of an engine have in common.
        owners: the clients, by falling number of batches.
        training: names the draws.

    Attributes:
        masks: what the dropout layers of the last batch draw from, a generator for each client.
    """

    def __init__(self, shop: Workshop, owners: list[int], training: Training) -> None:
        self._shop, self._owners = shop, owners
        self._draws = training.draws(shop.config.seed)
        self._parts: list[list[Tensor]] = [[] for _ in owners]  # batches drawn for each client
        self._per_epoch = [batches_of(len(shop.data.train[owner]), shop.config.batch_size) for owner in owners]
        self._taken, self._epochs = 0, 0  # batches taken in this phase, and epochs that it has
        self._begun = [0] * len(owners)  # batches of former phases
        self.masks: list[torch.Generator] = []

    def draw(self, epochs: int) -> None:
        """Begin a phase: so many epochs for every client."""
        self._begun = [len(parts) for parts in self._parts]
        self._taken, self._epochs = 0, epochs
        for client in range(len(self._owners)):
            for _ in range(epochs):
                self._one_more_epoch(client)

    def waiting(self) -> int:
        """How many clients have batches of the phase left, whatever a step drew beyond; they are the first ones."""
        return sum(self._epochs * per_epoch > self._taken for per_epoch in self._per_epoch)

    def next(self, clients: int) -> Batch:
        """The next batch of each of the first `clients`."""
        shop, data = self._shop, self._shop.data
        places = [begun + self._taken for begun in self._begun[:clients]]
        for client, place in enumerate(places):
            if place == len(self._parts[client]):
                self._one_more_epoch(client)
        parts = [self._parts[client][place] for client, place in enumerate(places)]
        sizes = [len(part) for part in parts]
        words = [(self._owners[client], *divmod(place, self._per_epoch[client])) for client, place in enumerate(places)]
        if shop.network.has_dropout:
            self.masks = [self._draws.masks(*name) for name in words]
        self._taken += 1
        if data.augment is None:
            longest = max(sizes)
            even = [_padded(part, longest) for part in parts] if min(sizes) < longest else parts
            return Batch(*data.batch(torch.stack(even), dtype=shop.config.dtype), sizes)
        drawn = [
            data.batch(part, dtype=shop.config.dtype, generator=self._draws.augmentation(*name))
            for part, name in zip(parts, words, strict=True)
        ]
        longest = max(sizes)
        inputs, labels = (torch.stack([_padded(t, longest) for t in ts]) for ts in zip(*drawn, strict=True))
        return Batch(inputs, labels, sizes)

    def _one_more_epoch(self, client: int) -> None:
        owner, samples = self._owners[client], self._shop.data.train[self._owners[client]]
        if not len(samples):
            return
        epoch = len(self._parts[client]) // self._per_epoch[client]
        order = self._draws.order(owner, epoch, len(samples)).to(samples.device)
        self._parts[client] += samples[order].split(self._shop.config.batch_size)


def _padded(part: Tensor, length: int) -> Tensor:
    """[b, ...] -> [length, ...], repeating the first entry: never somebody else's sample, whose NaN would spread."""
    missing = length - len(part)
    return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part


def clip_norms(grads: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale each client's gradients, [k, *shape] each, to a common norm of at most `largest`."""
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads])
    scale = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in grads]
