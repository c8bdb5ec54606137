"""Local training of one client with ordinary modules: the job that an objective's `step` gets in the loop engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.draws import OrdersAhead, batches_of
from dfl_lightning.engines.gradients import filled, is_missing
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.local_work import TINY, Attached, Duration, LossOf, Phase
from dfl_lightning.engines.loop.loop_memory import LoopMemory
from dfl_lightning.engines.loop.scratch import Scratch
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.trials.norm_strides import NormRisk
from dfl_lightning.tasks import MeanLoss
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank


@dataclass(frozen=True)
class LoopBatch(Attached):
    """A batch of one client.

    Args:
        inputs: [B, ...].
        labels: int64 [B].
        key: key of the batch's dropout masks, int32 [2].
        attached: further tensors by name, [B, ...] each, which can be read as attributes of the batch.
    """

    inputs: Tensor
    labels: Tensor
    key: Tensor
    attached: dict[str, Tensor] = field(default_factory=dict)

    @property
    def weights(self) -> Tensor:
        """Weights of the samples in the client's mean, 1 / B each, [B]."""
        count = len(self.labels)
        return torch.full((count,), 1 / count, dtype=self.inputs.dtype, device=self.labels.device)

    def attach(self, **tensors: Tensor) -> Self:
        """Return the batch with further tensors, [B, ...] each, which a loss can read as attributes."""
        return replace(self, attached={**self.attached, **tensors})


@dataclass(frozen=True)
class LoopWork:
    """Parts of a loop engine that all its jobs share.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.
        optimizer: factory of the user's optimizer for a client's parameters.
        scratch: context that lends a network which no other job uses.
        norms: guard of batches for which torch's normalisation layers need a correction.
        orders: orders of the clients' samples.
    """

    config: EngineConfig
    layout: Layout
    data: ClientData
    optimizer: ClientOptimizer
    scratch: Callable[[], AbstractContextManager[Scratch]]
    norms: NormRisk
    orders: OrdersAhead


def orders_ahead(config: EngineConfig, data: ClientData, owners: Sequence[int], training: Training) -> OrdersAhead:
    """Draw the orders of samples in the first phase of several clients.

    Args:
        config: see `EngineConfig`.
        data: the clients' resident data.
        owners: the clients.
        training: see `Training`.
    """
    samples = [len(data.train[owner]) for owner in owners]
    duration = next((phase.duration for phase in training.phases if not phase.duration.is_empty), Duration(0))
    batch_size = training.batch_size or config.batch_size
    epochs = [duration.epochs_drawn(batches_of(size, batch_size)) for size in samples]
    return OrdersAhead(training.draws(config.seed), owners, epochs, samples)


class LoopModel:
    """Model of the job's client in one row set, held by a network whose parameters are views of it.

    See `TrainableModel`.

    Args:
        job: the client's job.
        scratch: the network.
        row: the model, [width]; training writes into it.
        name: name of the row set; the round reports the losses of `models` only.
    """

    def __init__(self, job: LoopJob, scratch: Scratch, row: Tensor, name: str) -> None:
        self._job, self._scratch, self.row, self._name, self._counts = job, scratch, row, name, name == "models"
        self._start = row.clone()
        self._parameters: list[Tensor] = scratch.load(row)
        self._optimizer: torch.optim.Optimizer | None = None
        self._entries = [entry for entry in job.work.layout.entries if not entry.is_buffer]
        scratch.network.train()

    # --- interface for objectives -------------------------------------------------------------------------------------
    @property
    def params(self) -> list[Tensor]:
        """Present parameters, [*shape] each."""
        return [p.detach() for p in self._parameters]

    @property
    def start(self) -> list[Tensor]:
        """Parameters at the start of the job, [*shape] each."""
        return [self._start[e.start : e.stop].view(e.shape) for e in self._entries]

    def grad(
        self, batch: LoopBatch, loss: LossOf | None = None, *extras: Tensor, at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return gradients of the batch's mean loss, [*shape] each; see `TrainableModel.grad`."""
        job, config = self._job, self._job.work.config
        if loss is None and extras:
            raise ValueError("extras need a loss: grad(batch, loss, *extras)")
        params = self._parameters
        if at is not None:
            params = [a.detach().requires_grad_(p.requires_grad) for a, p in zip(at, self._parameters, strict=True)]
        wanted = [p for p in params if p.requires_grad]
        # The guard includes the backward pass, in which activation checkpointing computes layers again.
        with job.work.norms.guard(len(batch.labels)):
            with config.arithmetic(batch.inputs.device):
                scores = self._forward(batch, None if at is None else params).to(config.dtype)
                if loss is None:
                    value = config.loss(scores, batch.labels)
                else:
                    value = loss(scores, batch, dict(self._scratch.features), *extras)
            if value.dim():
                raise UserError(f"a loss given to grad returns a tensor of shape {tuple(value.shape)}, not one number")
            grads = iter(torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ())
        if self._counts:
            amount = len(batch.labels) if loss is not None else job.amount(batch)
            job.count(value.detach(), len(batch.labels), amount)
        of_all = [next(grads) if p.requires_grad else None for p in params]
        return [filled(g, p) for g, p in zip(of_all, params, strict=True)]

    def hessian_product(
        self, batch: LoopBatch, vector: Sequence[Tensor], at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return the loss's Hessian times a vector, [*shape] each; see `TrainableModel.hessian_product`."""
        config = self._job.work.config
        point = self.params if at is None else at
        params = [a.detach().requires_grad_(p.requires_grad) for a, p in zip(point, self._parameters, strict=True)]
        wanted = {index: p for index, p in enumerate(params) if p.requires_grad}
        with config.arithmetic(batch.inputs.device):
            value = config.loss(self._forward(batch, params), batch.labels)
        first = torch.autograd.grad(value, list(wanted.values()), create_graph=True, allow_unused=True)
        curved = [
            (g, vector[index]) for g, index in zip(first, wanted, strict=True) if g is not None and g.requires_grad
        ]
        products = [torch.zeros_like(p) for p in params]
        if curved:
            grads, along = zip(*curved, strict=True)
            second = torch.autograd.grad(grads, list(wanted.values()), along, allow_unused=True)
            for index, product in zip(wanted, second, strict=True):
                if product is not None:
                    products[index] = product
        return products

    @torch.no_grad()
    def features(self, batch: LoopBatch, layer: str = "head", at: Sequence[Tensor] | None = None) -> Tensor:
        """Return the input of a layer for this batch, [B, ...]; see `TrainableModel.features`."""
        with self._job.work.config.arithmetic(batch.inputs.device):
            self._forward(batch, at)
        return self._scratch.features[layer].detach()

    def climbed(self, grads: Sequence[Tensor], length: float) -> list[Tensor]:
        """Return the parameters after a step of this length up the gradient; see `TrainableModel.climbed`."""
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        return [p + g * (length / norm.clamp(min=TINY)) for p, g in zip(self.params, grads, strict=True)]

    def update(self, grads: Sequence[Tensor]) -> None:
        """Clip the gradients, and take one step of the optimizer on the phase's columns."""
        config = self._job.work.config
        trained = self._trained
        for p, g in zip(self._parameters, grads, strict=True):
            p.grad = None if not p.requires_grad or is_missing(g) else g.detach()
        if self._optimizer is None:
            self._optimizer = self._job.work.optimizer.make(
                list(trained.values()), list(trained), self._job.training.hyperparameters
            )
            memory = self._job.memory(self._name)
            if memory is not None:
                memory.put_into(self._optimizer, trained, self._job.work.optimizer.device_of_numbers(self.row.device))
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained.values(), config.clip_norm)
        if config.clip_value is not None:
            torch.nn.utils.clip_grad_value_(trained.values(), config.clip_value)
        self._optimizer.step()

    @torch.no_grad()
    def assign(self, values: Sequence[Tensor]) -> None:
        """Replace the parameters in the phase's columns by these values."""
        for p, value in zip(self._parameters, values, strict=True):
            if p.requires_grad:
                p.copy_(value)

    def _forward(self, batch: LoopBatch, at: Sequence[Tensor] | None) -> Tensor:
        scratch = self._scratch
        scratch.masks.begin(batch.key)  # Every pass of a batch has the same masks.
        scratch.features.clear()
        if at is None:
            return cast("Tensor", scratch.network(batch.inputs))
        names = (entry.name for entry in self._entries)
        return cast("Tensor", functional_call(scratch.network, dict(zip(names, at, strict=True)), (batch.inputs,)))

    # --- the phases ---------------------------------------------------------------------------------------------------
    def begin(self, columns: Columns) -> None:
        """Begin a phase that trains these columns, with a fresh optimizer."""
        self._freeze(columns)
        self._optimizer = None
        layout = self._job.work.layout
        self._frozen = None
        if len(columns) < layout.width:
            mask = columns.mask(layout.width, "cpu")
            self._frozen = torch.nonzero(~mask).squeeze(1).to(self.row.device)  # On a GPU, nonzero would wait for it.
            self._kept = self.row[self._frozen]

    def end(self) -> None:
        """End a phase: store the optimizer's state and the buffers, and restore the columns that were not trained."""
        memory = self._job.memory(self._name) if self._optimizer is not None else None
        if memory is not None and self._optimizer is not None:
            memory.take_from(self._optimizer, self._trained)
        self._scratch.store(self.row)
        if self._frozen is not None:
            self.row[self._frozen] = self._kept  # A forward pass changes buffers even if the phase trains none of them.

    def release(self) -> None:
        """Prepare the network for its next user: all parameters trainable, no gradients."""
        self._freeze(self._job.work.layout.all)
        for p in self._parameters:
            p.grad = None

    @property
    def _trained(self) -> dict[int, nn.Parameter]:
        """Parameters that the phase trains, by their index in the network's order."""
        trained = {index: p for index, p in enumerate(self._parameters) if p.requires_grad}
        return cast("dict[int, nn.Parameter]", trained)

    def _freeze(self, columns: Columns) -> None:
        """Freeze all parameters outside of `columns`."""
        for entry, p in zip(self._entries, self._parameters, strict=True):
            p.requires_grad_(entry.trainable and columns.holds(entry))


class LoopJob:
    """One client's local training; the `ctx` of an objective's `step`.

    Args:
        work: the parts that all jobs of the engine share.
        bank: the bank with the row sets that objectives read.
        row: the model, [width]: first its start, afterwards the result.
        owner: the client.
        training: see `Training`.

    Attributes:
        others: models of other row sets than `models` that have been trained, by row set.
        numbers: the client's present numbers, scalars by name.
        memories: states of the optimizers that have taken a step, by the row set of their model.
    """

    def __init__(self, work: LoopWork, bank: Bank, row: Tensor, owner: int, training: Training) -> None:
        self.work, self.training = work, training
        self._bank, self._owner, self._row = bank, owner, row
        self._samples = work.data.train[owner]
        self._batch_size = training.batch_size or work.config.batch_size
        self._per_epoch = batches_of(len(self._samples), self._batch_size)
        self._lent = ExitStack()
        self.others: dict[str, LoopModel] = {}
        self.memories: dict[str, LoopMemory] = {}
        self._kept: dict[str, Tensor] = {}  # Copies of the rows that the objective has read.
        self.loss_sum: float | Tensor = 0.0
        self.samples = 0
        self.weight: float | Tensor = 0.0
        self._draws = training.draws(work.config.seed)
        self.numbers = {name: bank.number(name)[owner].to(row) for name in training.numbers}
        self._counts = True  # True if the round reports the losses of the phase.
        self._epoch, self._waiting = 0, 0  # The number of drawn epochs, and of their batches that are not taken yet.
        self._left = 0  # Batches until the end of the phase.

    # --- interface for objectives -------------------------------------------------------------------------------------
    def model(self, name: str = "models") -> LoopModel:
        """Return the client's model in a row set; see `JobContext.model`."""
        if name == "models":
            return self._main
        if name not in self.others:
            self._check(name)
            row = self._bank.stored(name)[self._bank.ranks.place[self._owner]].clone()
            self.others[name] = LoopModel(self, self._lent.enter_context(self.work.scratch()), row, name)
            self.others[name].begin(self._phase.columns)
        return self.others[name]

    def rows(self, name: str) -> list[Tensor]:
        """Return the client's row of a row set, one tensor for each parameter; see `JobContext.rows`."""
        self._check(name)
        if name not in self._kept:
            self._kept[name] = self._bank.stored(name)[self._bank.ranks.place[self._owner]].clone()
        row = self._kept[name]
        return [row[e.start : e.stop].view(e.shape) for e in self.work.layout.entries if not e.is_buffer]

    @property
    def lr(self) -> float | Tensor:
        """Learning rate of the round."""
        return cast("float | Tensor", self.training.hyperparameters[0]["lr"])

    def number(self, name: str) -> Tensor:
        """Return the client's number, a scalar; see `JobContext.number`."""
        self._check_number(name)
        return self.numbers[name]

    def set_number(self, name: str, value: Tensor) -> None:
        """Replace the client's number by a scalar; see `JobContext.set_number`."""
        self._check_number(name)
        self.numbers[name] = value.detach().to(self.numbers[name]).reshape(())

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return the inner product of two lists of tensors over all parameters, a scalar."""
        return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()

    def next_batch(self) -> LoopBatch:
        """Return the next batch; draw one more epoch if all batches have been taken."""
        if not self._waiting:
            self._batches = self._draw_batches(1)
        self._waiting, self._left = self._waiting - 1, self._left - 1
        return next(self._batches)

    def loss(self, scores: Tensor, batch: LoopBatch) -> Tensor:
        """Return the run's own loss of a batch, a scalar; see `JobContext.loss`."""
        return self.work.config.loss(scores, batch.labels)

    # --- execution ----------------------------------------------------------------------------------------------------
    def memory(self, name: str) -> LoopMemory | None:
        """Return the kept state of the optimizer of a row set's model; None if states are not kept."""
        kept = self.training.memory
        if kept is None:
            return None
        if name not in self.memories:
            kept.check_models(name, self._phase.objective)
            self.memories[name] = LoopMemory(kept, self._bank, self._owner, name, self.work.layout)
        return self.memories[name]

    def run(self) -> None:
        """Run all phases, after which `row` holds the result."""
        with self._lent:
            self._main = LoopModel(self, self._lent.enter_context(self.work.scratch()), self._row, "models")
            phases = [phase for phase in self.training.phases if not phase.duration.is_empty]
            for phase in phases:
                self._run(phase, phase is phases[-1])
            for model in (self._main, *self.others.values()):
                model.release()

    def _run(self, phase: Phase, last: bool) -> None:
        self._phase = phase
        self._counts = phase.objective.reports_loss
        if self._counts:
            self.loss_sum, self.samples, self.weight = 0.0, 0, 0.0  # The round reports the losses of the last phase.
        for model in (self._main, *self.others.values()):
            model.begin(phase.columns)
        self._batches = self._draw_batches(phase.duration.epochs_drawn(self._per_epoch))
        self._left = phase.duration.batches(self._per_epoch)
        while self._left > 0:  # A step may take several batches, and the last step may go beyond the drawn epochs.
            phase.objective.step(self)
        if last:
            phase.objective.finish(self)
        for model in (self._main, *self.others.values()):
            model.end()

    def mean_gradient(self) -> Tensor:
        """Return the gradient of the mean loss over the data, or over the first batches, as a row [width]."""
        with self._lent:
            main = LoopModel(self, self._lent.enter_context(self.work.scratch()), self._row, "models")
            main.begin(self.work.layout.all)
            self._batches = self._draw_batches(1)
            total = [torch.zeros_like(p) for p in main.params]
            for _ in range(min(self.training.batches or self._per_epoch, self._per_epoch)):
                batch = self.next_batch()
                for t, g in zip(total, main.grad(batch), strict=True):
                    t += g * self.amount(batch)
            main.release()
        row = torch.zeros_like(self._row)
        entries = [e for e in self.work.layout.entries if not e.is_buffer]
        for e, t in zip(entries, total, strict=True):
            row[e.start : e.stop] = t.reshape(-1) / (self.weight if self.weight > 0 else 1.0)
        return row

    def amount(self, batch: LoopBatch) -> float | Tensor:
        """Return a batch's weight in a mean over batches: its number of samples, or the sum of the task's weights."""
        loss = self.work.config.loss
        weights = loss.task.weights(batch.labels) if isinstance(loss, MeanLoss) else None
        return len(batch.labels) if weights is None else weights.sum(dtype=torch.float64)

    def count(self, loss: Tensor, samples: int, amount: float | Tensor) -> None:
        """Add a batch to the mean loss that the round reports, if the phase's losses are reported.

        Args:
            loss: mean loss of the batch, a scalar.
            samples: number of samples of the batch.
            amount: weight of the batch in the mean.
        """
        if not self._counts:
            return
        self.loss_sum += (loss.double() if loss.is_cuda else float(loss)) * amount  # float() would wait for the GPU.
        self.samples += samples
        self.weight += amount

    def _check(self, name: str) -> None:
        undeclared = self._phase.objective.declares(name)
        if undeclared:
            raise UserError(undeclared)

    def _check_number(self, name: str) -> None:
        undeclared = self._phase.objective.declares_number(name)
        if undeclared:
            raise UserError(undeclared)

    def _draw_batches(self, epochs: int) -> Iterator[LoopBatch]:
        """Draw the batches of some epochs: a fresh order of the client's samples in each, cut into batches."""
        first, self._epoch = self._epoch, self._epoch + epochs
        self._waiting = epochs * self._per_epoch
        config, data, draws = self.work.config, self.work.data, self._draws

        def batches() -> Iterator[LoopBatch]:
            orders = self.work.orders.of(self._owner, first, epochs, len(self._samples))
            for epoch, order in enumerate(orders, first):
                for step, part in enumerate(self._samples[order].split(self._batch_size)):
                    key, drawn = draws.masks(self._owner, epoch, step), None
                    if data.augment is not None:
                        drawn = data.augment.draw(len(part), draws.augmentation(self._owner, epoch, step))
                    yield LoopBatch(*data.batch(part, dtype=config.dtype, draws=drawn), key)

        return batches()
