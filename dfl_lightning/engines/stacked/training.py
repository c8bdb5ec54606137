"""The local training of one cohort: what an objective's `step` works on, for k clients at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References
from dfl_lightning.engines.engine import Training
from dfl_lightning.engines.stacked.batches import Batch, BatchSource, Feed
from dfl_lightning.engines.stacked.context import Workshop
from dfl_lightning.engines.stacked.layers import Pass
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import Staging, unpack
from dfl_lightning.utils.thread_pool import Workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank
    from dfl_lightning.engines.stacked.cuda_graphs import Recordings
    from dfl_lightning.objectives import Phase


class StackedJob:
    """Local training of a cohort; the `ctx` of an objective's `step`.

    Clients are sorted by falling number of batches: those with batches left are the first k, and everything that an
    objective sees has these k in front.

    Args:
        shop: what the jobs of an engine have in common.
        bank: where models start from.
        references: the starts, by falling number of batches of the owners.
        training: see `Training`.
        pool: asked now and then whether the work is still wanted.
        recordings: whose memory is worked on, and which may do steps over again that it has seen.
    """

    def __init__(
        self,
        shop: Workshop,
        bank: Bank,
        references: References,
        training: Training,
        pool: Workers,
        recordings: Recordings | None = None,
    ) -> None:
        self._shop, self._bank, self._references, self._pool = shop, bank, references, pool
        self._training, self._recordings = training, recordings
        still = None if recordings is None else recordings.staging
        self._staging = Staging(shop.layout, bank.reader(references), into=still)
        self._whole = self._staging.parameters()
        self.kept: dict[str, list[Tensor]] = {}  # row sets that the objective asked for
        self.feed = Feed(shop, references.owners.tolist(), training)
        self._source: BatchSource = self.feed
        self.clients = count = len(references)
        device = shop.data.images.device
        if recordings is None:
            self.losses = torch.zeros(count, dtype=torch.float64, device=device)  # sums over samples
            self.samples = torch.zeros(count, dtype=torch.long, device=device)
        else:
            self.losses, self.samples = recordings.losses[:count], recordings.samples[:count]
        self.params: list[Tensor] = self._whole
        self._parameters = [entry for entry in shop.layout.entries if not entry.is_buffer]
        self._buffers = [entry.name for entry in shop.layout.entries if entry.is_buffer]
        self._leaves: list[Tensor] = []  # of `params`, where they have been made

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
        return self._source.next(self.clients)

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
        self.optimizer.step([p for p, _ in trained], clipped)

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
        self.feed.draw(phase.epochs)
        present = self._training.hyperparameters
        recording = self._recordings.begin(phase, self.feed, present) if self._recordings is not None else None
        if recording is not None:
            present = recording.take(present)
        places = [place for place, wanted in enumerate(self._trained) if wanted]
        make = partial(self._shop.optimizer.make, places=places, hyperparameters=present)
        self.optimizer = PrefixOptimizer(make)
        step = phase.objective.step if recording is None else recording.step
        self.losses.zero_()  # reported: the last phase
        self.samples.zero_()
        while self._narrow():
            self._pool.check()
            step(self)
        for name, tensor in kept.items():
            self._staging.tensors[name].copy_(tensor)

    def on_buffers(
        self, clients: int, memory: Recordings, source: BatchSource, states: list[dict[str, Any]]
    ) -> StackedJob:
        """The same work on the first `clients` of other memory: what a recorded step sees."""
        other = copy.copy(self)
        other._staging, other.kept, other._source = memory.staging, memory.kept, source
        other.losses, other.samples = memory.losses, memory.samples
        other._whole, other.clients = memory.staging.parameters(), clients
        other.params, other._leaves = other._first(other._whole), []
        other.optimizer = self.optimizer.on_buffers(states)
        return other

    def read(self, name: str) -> None:
        """Bring a row set, "" for the start, to where steps find it."""
        self._read(name, References.rows(name, self._references.owners) if name else self._references)

    @property
    def num_trained(self) -> int:
        """Parameters of a model that the phase trains."""
        return sum(self._trained)

    def mean_gradients(self) -> list[Tensor]:
        """Gradients of each client's mean loss over its data (or its first batches), [c, *shape] each."""
        self._freeze(self._shop.layout.all)
        self.feed.draw(1)
        total = [torch.zeros_like(p) for p in self._whole]
        taken = 0
        while self._narrow() and taken != (self._training.batches or None):
            self._pool.check()
            taken += 1
            batch = self.next_batch()
            for t, g in zip(total, self.grad(self.params, batch), strict=True):
                t[: self.clients] += g * along(batch.counts, g)
        samples = self.samples.clamp(min=1)
        return [t / along(samples, t) for t in total]

    def _narrow(self) -> bool:
        """Look at the clients with batches left only; False where nobody is left."""
        clients = self.feed.waiting()
        if clients and clients != self.params[0].shape[0]:
            self.params, self._leaves = [p[:clients] for p in self._whole], []
        self.clients = clients
        return bool(clients)

    def _freeze(self, columns: Columns) -> None:
        """Only entries inside `columns` are trained."""
        self._trained = [entry.trainable and columns.holds(entry) for entry in self._parameters]
        self._leaves = []

    def _first(self, tensors: list[Tensor]) -> list[Tensor]:
        return [t[: self.clients] for t in tensors]

    def _read(self, name: str, references: References) -> list[Tensor]:
        if name not in self.kept:
            tensors = unpack(self._shop.layout, self._bank.reader(references))
            self.kept[name] = tensors if self._recordings is None else self._recordings.keep(name, tensors)
        return self.kept[name]

    # --- gradients ----------------------------------------------------------------------------------------------------
    def _stretches(self, batch: Batch) -> list[tuple[int, int]]:
        """Clients [first, stop) that go through the network together.

        All of them, unless the samples of a batch meet (batch norms) and padding would take part: then only neighbours
        with equally many samples go together.
        """
        network = self._shop.network
        if network.masks_padding or not network.couples_samples:
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
        leaves = self._leaves_of(params, first, stop)
        tensors = {entry.name: leaf for entry, leaf in zip(self._parameters, leaves, strict=True)}
        for name in self._buffers:
            tensors[name] = self._staging.tensors[name][first:stop]
        part = (slice(first, stop), slice(longest))
        shares = batch.weights[part] if batch.padded and shop.network.masks_padding else None
        now = Pass(tensors, True, self._source.masks[first:stop], sizes, shares)
        with shop.config.arithmetic(batch.inputs.device):
            scores = shop.network(now, batch.inputs[part])
            losses = shop.loss(scores, batch.labels[part], sizes, batch.weights[part])
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        grads = iter(torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True))
        counts = batch.counts[first:stop]
        self.losses[first:stop].add_(losses.detach().double() * counts)
        self.samples[first:stop].add_(counts)
        found = [next(grads) if leaf.requires_grad else None for leaf in leaves]
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]

    def _leaves_of(self, params: Sequence[Tensor], first: int, stop: int) -> list[Tensor]:
        """Clients [first, stop) of `params`, as what gradients are taken of; once for all steps where it can be."""
        ours = params is self.params and stop - first == self.clients
        if ours and self._leaves:
            return self._leaves
        leaves = [
            p[first:stop].detach().requires_grad_(wanted) for p, wanted in zip(params, self._trained, strict=True)
        ]
        if ours:
            self._leaves = leaves
        return leaves


def clip_norms(grads: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale each client's gradients, [k, *shape] each, to a common norm of at most `largest`."""
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads])
    scale = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [g * along(scale, g) for g in grads]


def along(numbers: Tensor, tensor: Tensor) -> Tensor:
    """[k] shaped to multiply a tensor [k, ...]."""
    return numbers.view(-1, *[1] * (tensor.dim() - 1))
