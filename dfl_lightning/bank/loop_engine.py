"""The plain loop over clients: one network, one optimizer, one client after the other.

It does what a paper's pseudo-code says with ordinary modules and `torch.optim`, and is the reference that any faster
engine is tested against.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from dfl_lightning.bank.dropout_layers import replace_dropout_layers
from dfl_lightning.bank.engine import Engine, EngineConfig, Training
from dfl_lightning.bank.jobs import Evaluation, References, Trained
from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.data import ClientData
from dfl_lightning.errors import UserError
from dfl_lightning.streams import stream

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

EVALUATION_BATCH = 1000
"""Samples in one forward pass of an evaluation."""


class LoopEngine(Engine):
    """Clients one by one on a single scratch network whose parameters are views of a client's row."""

    name = "loop"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData) -> None:
        super().__init__(config, layout, data)
        self._network = copy.deepcopy(config.network).to(data.images.device, config.dtype)
        self._masks = replace_dropout_layers(self._network)
        self._parameters, self._buffers = dict(self._network.named_parameters()), dict(self._network.named_buffers())
        self._refuse_single_samples()
        self._metrics = {name: metric.clone().to(data.images.device) for name, metric in config.metrics.items()}

    @torch.no_grad()
    def _refuse_single_samples(self) -> None:
        """BatchNorm cannot train on one sample: better said now than by a traceback in the middle of a round."""
        size = self.config.batch_size
        single = [owner for owner, samples in enumerate(self.data.train) if len(samples) % size == 1 or size == 1]
        if not single:
            return
        x, _ = self.data.batch(self.data.train[single[0]][:1], dtype=self.config.dtype)
        try:
            self._network.train()(x)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UserError(
                f"client {single[0]} has {len(self.data.train[single[0]])} training samples, so that with "
                f"model.batch_size={size} a batch holds a single one, which the network's BatchNorm cannot be "
                "trained on; choose another batch size"
            ) from error

    def train_cohort(self, bank: Bank, references: References, training: Training, target: Tensor) -> Trained:
        """Train the jobs of one cohort, each by itself; see `Engine.train`."""
        losses, samples, finite = [], [], []
        for index, owner in enumerate(references.owners.tolist()):
            row = bank.materialise(references.take(torch.tensor([index])))[0]
            job = _Job(self, row, owner, training)
            if training.gradients:
                row = job.mean_gradient()
            else:
                job.run()
            ok = bool(torch.isfinite(row).all())
            target[owner] = row
            losses.append(job.loss_sum / job.samples if job.samples else float("nan"))
            samples.append(job.samples)
            finite.append(ok)
        return Trained(torch.tensor(losses, dtype=torch.float64), torch.tensor(samples), torch.tensor(finite))

    @torch.no_grad()
    def evaluate_cohort(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Evaluate the jobs of one cohort, each by itself; see `Engine.evaluate`."""
        nan = float("nan")
        losses = []
        metrics: dict[str, list[float]] = {name: [] for name in ("acc", *self._metrics)}
        network = self._network.eval()
        for index, owner in enumerate(references.owners.tolist()):
            samples = self._samples(owner, split)
            self.load(bank.materialise(references.take(torch.tensor([index])))[0])
            loss = correct = 0.0
            for metric in self._metrics.values():
                metric.reset()
            for part in samples.split(EVALUATION_BATCH) if len(samples) else ():  # nothing splits into one empty part
                x, y = self.data.batch(part, dtype=self.config.dtype)
                outputs = network(x)
                loss += float(self.config.loss(outputs, y)) * len(part)
                correct += float((outputs.argmax(dim=1) == y).sum())
                for metric in self._metrics.values():
                    metric.update(outputs, y)
            losses.append(loss / len(samples) if len(samples) else nan)
            metrics["acc"].append(correct / len(samples) if len(samples) else nan)
            for name, metric in self._metrics.items():
                metrics[name].append(float(metric.compute()) if len(samples) else nan)
        as_tensor = {name: torch.tensor(values, dtype=torch.float64) for name, values in metrics.items()}
        return Evaluation(torch.tensor(losses, dtype=torch.float64), as_tensor)

    def _samples(self, owner: int, split: str) -> Tensor:
        if owner < 0:
            assert self.data.global_test is not None
            return self.data.global_test
        parts: Sequence[Tensor] = getattr(self.data, split)
        return parts[owner]

    def load(self, row: Tensor) -> list[Tensor]:
        """Point the scratch network's parameters and buffers at `row`; returns the parameters, in the layout's order.

        Integer buffers cannot be views of a float row: they are copied, and copied back by `store`.
        """
        parameters, buffers = self._parameters, self._buffers
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
        """Copy integer buffers back into the row."""
        for entry in self.layout.entries:
            if entry.is_buffer and not entry.dtype.is_floating_point:
                row[entry.start : entry.stop] = self._buffers[entry.name].reshape(-1).to(row.dtype)


class _Job:
    """One client's local training; the `ctx` of an objective's `step`."""

    def __init__(self, engine: LoopEngine, row: Tensor, owner: int, training: Training) -> None:
        self._engine, self._row, self._owner, self._training = engine, row, owner, training
        self._samples = engine.data.train[owner]
        self._names = [e.name for e in engine.layout.entries if not e.is_buffer]
        self.start = [row[e.start : e.stop].view(e.shape).clone() for e in engine.layout.entries if not e.is_buffer]
        self.params: list[Tensor] = engine.load(row)
        self.loss_sum, self.samples, self._epoch = 0.0, 0, 0

    # --- what an objective sees --------------------------------------------------------------------------------------
    def next_batch(self) -> tuple[Tensor, Tensor]:
        """The next batch of the epoch: inputs [B, ...] and labels [B]."""
        return next(self._batches)

    def grad(self, params: Sequence[Tensor], batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Gradients of the batch's mean loss at `params`, one tensor for each parameter."""
        engine, (x, y) = self._engine, batch
        network = engine._network
        wanted = [p for p in params if p.requires_grad]
        if params is self.params:
            outputs = network(x)
        else:
            outputs = functional_call(network, dict(zip(self._names, params, strict=True)), (x,))
        loss = engine.config.loss(outputs, y)
        grads = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        self.loss_sum += float(loss.detach()) * len(y)
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
        engine = self._engine
        engine._network.train()
        for phase in self._training.phases:
            if phase.epochs == 0:
                continue
            self._freeze(phase.columns)
            frozen = ~phase.columns.mask(engine.layout.width, self._row.device)
            kept = self._row[frozen]
            self._optimizer = engine.config.optimizer([p for p in self.params if p.requires_grad])
            for group in self._optimizer.param_groups:
                group["lr"] = self._training.lr
            self.loss_sum, self.samples = 0.0, 0  # reported: the last phase
            for _ in range(phase.epochs):
                self._batches = self._draw_batches()
                for _ in range(-(-len(self._samples) // engine.config.batch_size)):
                    phase.objective.step(self)
            engine.store(self._row)
            self._row[frozen] = kept  # buffers move in a forward pass even where nothing is trained
        self._freeze(engine.layout.all)
        for p in self.params:
            p.grad = None

    def mean_gradient(self) -> Tensor:
        """The gradient of the mean loss over the data (or the first batches), as a row; parameters stay."""
        engine = self._engine
        engine._network.train()
        self._freeze(engine.layout.all)
        self._batches = self._draw_batches()
        limit = self._training.batches or len(self._samples)
        total = [torch.zeros_like(p) for p in self.params]
        for _ in range(min(limit, -(-len(self._samples) // engine.config.batch_size))):
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
        mask = columns.mask(self._engine.layout.width)
        entries = [e for e in self._engine.layout.entries if not e.is_buffer]
        for e, p in zip(entries, self.params, strict=True):
            p.requires_grad_(e.trainable and bool(mask[e.start : e.stop].all()))

    def _draw_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch: a fresh order of the client's samples, cut into batches, the last one possibly smaller."""
        config, data, training = self._engine.config, self._engine.data, self._training
        words = (training.round, self._owner, self._epoch)
        self._epoch += 1
        order = torch.randperm(len(self._samples), generator=stream(config.seed, f"{training.purpose} batches", *words))
        for step, part in enumerate(self._samples[order.to(self._samples.device)].split(config.batch_size)):
            self._engine._masks.generator = stream(config.seed, f"{training.purpose} dropout layers", *words, step)
            augment = stream(config.seed, f"{training.purpose} augment", *words, step) if data.augment else None
            yield data.batch(part, dtype=config.dtype, generator=augment)
