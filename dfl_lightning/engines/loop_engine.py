"""The plain loop over clients: one network, one optimizer, one client after the other.

It does what a paper's pseudo-code says with ordinary modules and `torch.optim`, and is the reference that any faster
engine is tested against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import Evaluation, References, Trained
from dfl_lightning.data import ClientData
from dfl_lightning.engines.copies import copy_of
from dfl_lightning.engines.draws import batches_of
from dfl_lightning.engines.dropout_layers import replace_dropout_layers
from dfl_lightning.engines.engine import EVALUATION_BATCH, Engine, EngineConfig, Training, right_answers
from dfl_lightning.engines.optimizers import ClientOptimizer
from dfl_lightning.engines.placing import set_mode
from dfl_lightning.engines.trial import Trial, try_plain
from dfl_lightning.utils.thread_pool import Workers, workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank


class LoopEngine(Engine):
    """Clients one by one, each thread on a scratch network whose parameters are views of a client's row.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.
        trial: what is known of the network and the loss, if they have been tried already.
    """

    name = "loop"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, trial: Trial | None = None) -> None:
        trial = trial or try_plain(config, data)
        super().__init__(trial.config, layout, data)
        self.optimizer = ClientOptimizer(config.optimizer, config.network).on(data.images.device)
        self._whole = trial.couples_evaluation
        if self._whole:
            self.details["evaluation"] = "all samples of a client in one batch, because they meet in the network"
        self._scratches: list[Scratch] = []

    @property
    def cohort_bytes(self) -> int:
        """One client at a time: its row, its start, its gradients; activations are not counted."""
        return 3 * self.layout.width * self.config.dtype.itemsize

    def train_cohort(
        self, bank: Bank, references: References, training: Training, target: Tensor, pool: Workers
    ) -> Trained:
        """Train the jobs of one cohort, each by itself; see `Engine.train`."""
        losses, samples, finite = [], [], []
        with self._scratch() as scratch:
            for index, owner in enumerate(references.owners.tolist()):
                pool.check()
                row = bank.materialise(references.take(torch.tensor([index])))[0]
                job = _Job(self, scratch, bank, row, owner, training)
                if training.gradients:
                    row = job.mean_gradient()
                else:
                    job.run()
                finite.append(torch.isfinite(row).all())
                target[bank.ranks.place[owner]] = row
                mean = job.loss_sum / job.samples if job.samples else float("nan")
                losses.append(torch.as_tensor(mean, dtype=torch.float64, device=row.device))
                samples.append(job.samples)
        return Trained(torch.stack(losses).cpu(), torch.tensor(samples), torch.stack(finite).cpu())

    def evaluate(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Evaluate the jobs, each by itself; see `Engine.evaluate`."""
        cohorts = self.by_cohort(references.owners)
        set_mode(self.config.loss, False)

        def work(jobs: Tensor) -> list[Tensor]:
            found = []
            with torch.no_grad(), self._scratch() as scratch:
                for job in jobs.tolist():
                    pool.check()
                    row = bank.materialise(references.take(torch.tensor([job])))[0]
                    found.append(scratch.scores(row, self.samples(int(references.owners[job]), split)))
            return found

        with workers(self.threads) as pool, one_blas_thread():
            results = pool.map(work, cohorts, between=self.between_cohorts)
        table = torch.full((1 + len(self.metrics), len(references)), float("nan"), dtype=torch.float64)
        if cohorts:
            found = torch.stack([scores for several in results for scores in several])
            table[:, torch.cat(cohorts)] = found.cpu().T  # a GPU is waited for once
        losses, *metrics = table
        return Evaluation(losses, dict(zip(self.metrics, metrics, strict=True)))

    @contextmanager
    def _scratch(self) -> Iterator[Scratch]:
        """A scratch network that no other thread uses."""
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = Scratch(self.config, self.layout, self.data, self._whole)
        try:
            yield scratch
        finally:
            self._scratches.append(scratch)


class Scratch:
    """A plain network that takes up any client's row.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.
        whole: evaluate all samples of a job in one batch, however many.
    """

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, whole: bool = False) -> None:
        self.config, self.layout, self.data, self._whole = config, layout, data, whole
        self.network = copy_of(config.network).to(data.images.device, config.dtype)
        self.masks = replace_dropout_layers(self.network)
        self._parameters, self._buffers = dict(self.network.named_parameters()), dict(self.network.named_buffers())
        layers = dict(self.network.named_modules())
        split = {name: name.rpartition(".") for name in self._buffers}
        self._homes = {name: (layers[layer], leaf) for name, (layer, _, leaf) in split.items()}
        self._metrics = {name: metric.clone().to(data.images.device) for name, metric in config.metrics.items()}

    def load(self, row: Tensor) -> list[Tensor]:
        """Point the network's parameters and buffers at `row`; returns the parameters, in the layout's order.

        Integer buffers cannot be views of a float row: they are copied, and copied back by `store`.
        """
        parameters, buffers = self._parameters, self._buffers
        for name, (layer, leaf) in self._homes.items():
            if getattr(layer, leaf) is not buffers[name]:  # the last evaluation assigned it
                setattr(layer, leaf, buffers[name])
        for entry in self.layout.entries:
            view = row[entry.start : entry.stop].view(entry.shape)
            if not entry.is_buffer:
                parameters[entry.name].data = view
            elif entry.dtype.is_floating_point:
                buffers[entry.name].data = view
            else:
                buffers[entry.name].copy_(view.round())
        return [parameters[e.name] for e in self.layout.entries if not e.is_buffer]

    def store(self, row: Tensor) -> None:
        """Copy the buffers that are no views of it back into the row: integers, and what a forward pass assigned."""
        for entry in self.layout.entries:
            if not entry.is_buffer:
                continue
            (layer, leaf), own = self._homes[entry.name], self._buffers[entry.name]
            now = getattr(layer, leaf)
            if now is not own:
                own.copy_(now)
                setattr(layer, leaf, own)
            if not entry.dtype.is_floating_point:
                row[entry.start : entry.stop] = own.reshape(-1).to(row.dtype)

    def scores(self, row: Tensor, samples: Tensor) -> Tensor:
        """Mean loss (infinite, if it is no number), accuracy and metrics of a row on samples; NaN without samples.

        They stay where the row is, float64 [2 + metrics]: a GPU is not waited for.
        """
        metrics = self._metrics
        if not len(samples):
            return torch.full((2 + len(metrics),), float("nan"), dtype=torch.float64, device=row.device)
        self.load(row)
        network = self.network.eval()
        loss, correct = torch.zeros(2, dtype=torch.float64, device=row.device)
        for metric in metrics.values():
            metric.reset()
        for part in (samples,) if self._whole else samples.split(EVALUATION_BATCH):
            x, y = self.data.batch(part, dtype=self.config.dtype)
            with self.config.arithmetic(x.device):
                outputs = network(x)
            outputs = outputs.to(self.config.dtype)
            loss = loss + self.config.loss(outputs, y).double() * len(part)
            correct = correct + right_answers(outputs, y, classes=1).sum()
            for metric in metrics.values():
                metric.update(outputs, y)
        loss = torch.where(loss.isnan(), math.inf, loss / len(samples))
        computed = (torch.as_tensor(metric.compute(), device=row.device).double() for metric in metrics.values())
        return torch.stack([loss, correct / len(samples), *(value.reshape(()) for value in computed)])


class _Job:
    """One client's local training; the `ctx` of an objective's `step`."""

    def __init__(
        self, engine: LoopEngine, scratch: Scratch, bank: Bank, row: Tensor, owner: int, training: Training
    ) -> None:
        self._engine, self._scratch, self._bank = engine, scratch, bank
        self._row, self._owner, self._training = row, owner, training
        self._samples = engine.data.train[owner]
        self._per_epoch = batches_of(len(self._samples), engine.config.batch_size)
        self._names = [e.name for e in engine.layout.entries if not e.is_buffer]
        self.start = self._parts(row.clone())
        self.params: list[Tensor] = scratch.load(row)
        self.loss_sum: float | Tensor = 0.0
        self.samples = 0
        self._draws = training.draws(engine.config.seed)
        self._epoch, self._waiting = 0, 0  # epochs drawn; batches of them that nobody has taken yet
        self._left = 0  # batches until the phase is over

    # --- what an objective sees --------------------------------------------------------------------------------------
    def rows(self, name: str) -> list[Tensor]:
        """The owner's row of a row set, one tensor for each parameter."""
        return self._parts(self._bank.rows(name)[self._bank.ranks.place[self._owner]])

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """The next batch: inputs [B, ...] and labels [B]; one more epoch is drawn where all are taken."""
        if not self._waiting:
            self._batches = self._draw_batches(1)
        self._waiting, self._left = self._waiting - 1, self._left - 1
        return next(self._batches)

    def grad(self, params: Sequence[Tensor], batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Gradients of the batch's mean loss at `params`, one tensor for each parameter."""
        engine, (x, y) = self._engine, batch
        network = self._scratch.network
        self._scratch.masks.call = 0  # the masks of a batch, however often its gradient is asked for
        wanted = [p for p in params if p.requires_grad]
        with engine.config.arithmetic(x.device):
            if params is self.params:
                outputs = network(x)
            else:
                outputs = functional_call(network, dict(zip(self._names, params, strict=True)), (x,))
            loss = engine.config.loss(outputs, y)
        grads = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        value = loss.detach()
        self.loss_sum += (value.double() if value.is_cuda else float(value)) * len(y)  # a GPU is not waited for
        self.samples += len(y)
        found = [next(grads) if p.requires_grad else None for p in params]
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]

    def update(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """One optimizer step of the phase's columns, after the client's own clipping."""
        config = self._engine.config
        trained = [p for p in params if p.requires_grad]
        for p, g in zip(params, grads, strict=True):
            p.grad = g if p.requires_grad else None
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
        if config.clip_value is not None:
            torch.nn.utils.clip_grad_value_(trained, config.clip_value)
        self._optimizer.step()

    # --- the job itself -----------------------------------------------------------------------------------------------
    def run(self) -> None:
        """All phases; the row holds the result."""
        engine, scratch = self._engine, self._scratch
        scratch.network.train()
        for phase in self._training.phases:
            if phase.epochs == 0:
                continue
            self._freeze(phase.columns)
            mask = phase.columns.mask(engine.layout.width, "cpu")
            frozen = torch.nonzero(~mask).squeeze(1).to(self._row.device)  # found where nobody waits for a GPU
            kept = self._row[frozen]
            trained = {place: p for place, p in enumerate(self.params) if p.requires_grad}
            self._optimizer = engine.optimizer.make(
                cast("list[nn.Parameter]", list(trained.values())), list(trained), self._training.hyperparameters
            )
            self.loss_sum, self.samples = 0.0, 0  # reported: the last phase
            self._batches = self._draw_batches(phase.epochs)
            self._left = phase.epochs * self._per_epoch
            while self._left > 0:  # a step may take more than one, the last step also of one more epoch
                phase.objective.step(self)
            scratch.store(self._row)
            self._row[frozen] = kept  # buffers move in a forward pass even where nothing is trained
        self._freeze(engine.layout.all)
        for p in self.params:
            p.grad = None

    def mean_gradient(self) -> Tensor:
        """The gradient of the mean loss over the data (or the first batches), as a row; parameters stay."""
        engine = self._engine
        self._scratch.network.train()
        self._freeze(engine.layout.all)
        self._batches = self._draw_batches(1)
        total = [torch.zeros_like(p) for p in self.params]
        for _ in range(min(self._training.batches or self._per_epoch, self._per_epoch)):
            batch = self.next_batch()
            for t, g in zip(total, self.grad(self.params, batch), strict=True):
                t += g * len(batch[1])
        row = torch.zeros_like(self._row)
        entries = [e for e in engine.layout.entries if not e.is_buffer]
        for e, t in zip(entries, total, strict=True):
            row[e.start : e.stop] = t.reshape(-1) / max(1, self.samples)
        return row

    def _freeze(self, columns: Columns) -> None:
        """Only entries inside `columns` are trained."""
        entries = [e for e in self._engine.layout.entries if not e.is_buffer]
        for e, p in zip(entries, self.params, strict=True):
            p.requires_grad_(e.trainable and columns.holds(e))

    def _parts(self, row: Tensor) -> list[Tensor]:
        return [row[e.start : e.stop].view(e.shape) for e in self._engine.layout.entries if not e.is_buffer]

    def _draw_batches(self, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """So many epochs: each a fresh order of the client's samples, cut into batches, the last possibly smaller."""
        first, self._epoch = self._epoch, self._epoch + epochs
        self._waiting = epochs * self._per_epoch
        config, data, draws = self._engine.config, self._engine.data, self._draws

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for epoch in range(first, first + epochs):
                order = draws.order(self._owner, epoch, len(self._samples))
                for step, part in enumerate(self._samples[order].split(config.batch_size)):
                    self._scratch.masks.begin(draws.masks(self._owner, epoch, step))
                    drawn = None
                    if data.augment is not None:
                        drawn = data.augment.draw(len(part), draws.augmentation(self._owner, epoch, step))
                    yield data.batch(part, dtype=config.dtype, draws=drawn)

        return batches()
