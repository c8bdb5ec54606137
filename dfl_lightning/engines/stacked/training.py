"""Local training of one cohort: the job that an objective's `step` gets in the stacked engine, for k clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References
from dfl_lightning.engines.gradients import filled, is_missing, joined
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.local_work import TINY, Duration, LossOf, Phase
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.engines.stacked.batches import BatchSource, Feed, StackedBatch
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.kept_optimizer import KeptOptimizer, KeptStates
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import Staging, unpack
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.thread_pool import Workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank


class _RecordedPhase(Protocol):
    """Steps of a phase that may be recorded and replayed; see `cuda_graphs.Recording`."""

    def take(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Copy the options of the parameter groups to the memory from which recorded steps read them."""

    def step(self, job: StackedJob) -> None:
        """Do a step, by replaying a recording if there is one."""


class _StaticMemory(Protocol):
    """Static memory of a cohort, on which recorded steps work; see `cuda_graphs.Recordings`."""

    losses: Tensor
    samples: Tensor
    weights: Tensor
    kept: dict[str, list[Tensor]]
    numbers: dict[str, Tensor]

    def staging(self, name: str) -> Staging:
        """Return the memory of a row set's models."""

    def keep(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy a row set's tensors into the static memory."""

    def keep_number(self, name: str, values: Tensor) -> Tensor:
        """Copy the clients' numbers into the static memory."""

    def begin(self, phase: Phase, feed: Feed, hyperparameters: Hyperparameters) -> _RecordedPhase | None:
        """Begin a phase, and return its recorded steps; None if its steps cannot be recorded."""


class StackedModel:
    """Clients' models of one row set while they are trained; see `TrainableModel`.

    Args:
        job: the cohort's job.
        name: name of the row set; the round reports the losses of `models` only.
        staging: memory of the models.
    """

    def __init__(self, job: StackedJob, name: str, staging: Staging) -> None:
        self._job, self.name, self.staging = job, name, staging
        self._whole = staging.parameters()
        self._now: list[Tensor] = []  # Parameters of the first k clients.
        self._leaves: list[Tensor] = []  # The same as leaves of autograd, if they have been made.
        self.optimizer: PrefixOptimizer | KeptOptimizer | None = None

    # --- interface for objectives -------------------------------------------------------------------------------------
    @property
    def params(self) -> list[Tensor]:
        """Present parameters, [k, *shape] each."""
        if not self._now or len(self._now[0]) != self._job.clients:
            self._now, self._leaves = self._job.first(self._whole), []
        return self._now

    @property
    def start(self) -> list[Tensor]:
        """Parameters at the start of the job, [k, *shape] each."""
        return self._job.first(self._job.read("" if self.name == "models" else self.name))

    def grad(
        self, batch: StackedBatch, loss: LossOf | None = None, *extras: Tensor, at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return gradients of each client's mean loss, [k, *shape] each; see `TrainableModel.grad`."""
        if loss is None and extras:
            raise ValueError("extras need a loss: grad(batch, loss, *extras)")
        stretches = self._job.stretches(batch)
        parts = [self._gradients(batch, loss, extras, at, first, stop) for first, stop in stretches]
        return parts[0] if len(parts) == 1 else [joined(several) for several in zip(*parts, strict=True)]

    def hessian_product(
        self, batch: StackedBatch, vector: Sequence[Tensor], at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Raise a `UserError`, since stacked layers have first derivatives only."""
        name = type(self._job.context.config.objective).__name__
        raise UserError(
            f"objective {name} takes a second derivative, which stacked layers do not have; "
            "add the class attribute stackable = False, or use --engine loop"
        )

    @torch.no_grad()
    def features(self, batch: StackedBatch, layer: str = "head", at: Sequence[Tensor] | None = None) -> Tensor:
        """Return the input of a layer for this batch, [k, B, ...]; see `TrainableModel.features`."""
        params = self.params if at is None else at
        inputs = []
        for first, stop in self._job.stretches(batch):
            with self._job.context.config.arithmetic(batch.inputs.device):
                _, features = self._scores([p[first:stop] for p in params], batch, first, stop)
            part = features[layer]
            missing = batch.labels.shape[1] - part.shape[1]  # Padding; its values are never read.
            inputs.append(torch.cat([part, part[:, :1].expand(-1, missing, *part.shape[2:])], 1) if missing else part)
        return inputs[0] if len(inputs) == 1 else torch.cat(inputs)

    def climbed(self, grads: Sequence[Tensor], length: float) -> list[Tensor]:
        """Return the parameters after a step of this length up each client's gradient; see `TrainableModel.climbed`."""
        scale = length / lengths(grads).clamp(min=TINY)
        return [p + g * along(scale, g) for p, g in zip(self.params, grads, strict=True)]

    def update(self, grads: Sequence[Tensor]) -> None:
        """Clip each client's gradients, and take one step of the optimizer on the phase's columns."""
        job, config = self._job, self._job.context.config
        trained = [(p, g) for p, g, wanted in zip(self.params, grads, job.trained, strict=True) if wanted]
        clipped = [g for _, g in trained]
        if config.clip_norm is not None:
            clipped = clip_norms(clipped, config.clip_norm)
        if config.clip_value is not None:
            clipped = [g.clamp(-config.clip_value, config.clip_value) for g in clipped]
        if self.optimizer is None:
            self.optimizer = job.optimizer(self.name)
        present = [None if is_missing(g) else c for (_, g), c in zip(trained, clipped, strict=True)]
        self.optimizer.step([p for p, _ in trained], present)

    @torch.no_grad()
    def assign(self, values: Sequence[Tensor]) -> None:
        """Replace the parameters in the phase's columns by these values."""
        for p, value, wanted in zip(self.params, values, self._job.trained, strict=True):
            if wanted:
                p.copy_(value)

    # --- the phases ---------------------------------------------------------------------------------------------------
    def begin(self, columns: Columns) -> None:
        """Begin a phase that trains these columns, with a fresh optimizer."""
        self._leaves, self.optimizer = [], None
        self._kept = {
            entry.name: self.staging.tensors[entry.name].clone()
            for entry in self._job.context.layout.entries
            if entry.is_buffer and not columns.holds(entry)
        }  # A forward pass changes buffers even if the phase does not train them.

    def end(self) -> None:
        """End a phase: save the optimizer's state if it is kept, and restore the buffers that were not trained."""
        if isinstance(self.optimizer, KeptOptimizer):
            self.optimizer.save()
        for name, tensor in self._kept.items():
            self.staging.tensors[name].copy_(tensor)

    def of_job(self, job: StackedJob, staging: Staging, states: list[dict[str, Any]]) -> StackedModel:
        """Copy the model for another job, with other memory.

        Args:
            job: the other job.
            staging: the other memory.
            states: states of the optimizer, one for each parameter.
        """
        other = StackedModel(job, self.name, staging)
        optimizer = self.optimizer if isinstance(self.optimizer, PrefixOptimizer) else job.fresh_optimizer()
        other.optimizer = optimizer.on_buffers(states)
        return other

    # --- gradients ----------------------------------------------------------------------------------------------------
    def _gradients(
        self,
        batch: StackedBatch,
        loss: LossOf | None,
        extras: Sequence[Tensor],
        at: Sequence[Tensor] | None,
        first: int,
        stop: int,
    ) -> list[Tensor]:
        job, context, sizes = self._job, self._job.context, batch.sizes[first:stop]
        leaves = self._leaves_of(at, first, stop)
        job.own_loss |= loss is not None
        if not batch.exact and (context.loss.task is None or loss is not None):
            raise RuntimeError("a loss given to grad needs batches of known length")
        part = (slice(first, stop), slice(max(sizes)))
        with context.config.arithmetic(batch.inputs.device):
            scores, features = self._scores(leaves, batch, first, stop)
            scores = scores.to(context.config.dtype)  # In torch.vmap, losses would compute in the reduced precision.
            if loss is None:
                losses = context.loss(scores, batch.labels[part], sizes, batch.weights[part])
            else:
                samples = {name: tensor[part] for name, tensor in batch.per_sample.items()}
                losses = context.loss.own(loss, scores, samples, features, [e[first:stop] for e in extras], sizes)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        grads = iter(torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True) if wanted else ())
        if self.name == "models" and job._counts:
            counts = batch.counts[first:stop]
            amounts = (
                counts if loss is not None else context.loss.amounts(batch.labels[part], batch.weights[part], counts)
            )
            job.losses[first:stop].add_(losses.detach().double() * amounts)
            job.weights[first:stop].add_(amounts)
            job.samples[first:stop].add_(counts)
        of_all = [next(grads) if leaf.requires_grad else None for leaf in leaves]
        return [filled(g, leaf) for g, leaf in zip(of_all, leaves, strict=True)]

    def _scores(
        self, params: Sequence[Tensor], batch: StackedBatch, first: int, stop: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute scores of clients [first, stop) with these parameters; return them and the features by name."""
        job, context, sizes = self._job, self._job.context, batch.sizes[first:stop]
        tensors = {entry.name: p for entry, p in zip(job.parameters, params, strict=True)}
        for name in job.buffers:
            tensors[name] = self.staging.tensors[name][first:stop]
        part = (slice(first, stop), slice(max(sizes)))
        shares = batch.weights[part] if batch.padded and context.network.masks_padding else None
        now = Pass(tensors, True, batch.masks[first:stop], sizes, shares)
        scores = context.network(now, batch.inputs[part])
        return scores, now.features

    def _leaves_of(self, at: Sequence[Tensor] | None, first: int, stop: int) -> list[Tensor]:
        """Return the parameters of clients [first, stop) as leaves of autograd; reuse them in the next steps."""
        params = self.params if at is None else at
        reusable = at is None and stop - first == self._job.clients
        if reusable and self._leaves:
            return self._leaves
        leaves = [
            p[first:stop].detach().requires_grad_(wanted) for p, wanted in zip(params, self._job.trained, strict=True)
        ]
        if reusable:
            self._leaves = leaves
        return leaves


class StackedJob:
    """Local training of a cohort; the `ctx` of an objective's `step`.

    Clients are sorted by falling number of batches. Those with batches left are the first k, and the tensors that an
    objective gets have these k clients as their leading dimension.

    Args:
        context: the parts that all jobs of the engine share.
        bank: the bank with the models.
        references: the models that training starts from, by falling number of batches of their owners.
        training: see `Training`.
        pool: the threads; `pool.check` is called between steps.
        recordings: static memory to work on, with recorded steps that may be replayed; None: fresh memory.

    Attributes:
        models: the models that are trained, by row set.
        clients: k.
        kept: the rows that the objective has read, by row set; "" is the start.
        memories: states of the optimizers that have taken a step, by the row set of their models.
        trained: for each parameter, True if the phase trains it.
    """

    def __init__(
        self,
        context: StackedContext,
        bank: Bank,
        references: References,
        training: Training,
        pool: Workers,
        recordings: _StaticMemory | None = None,
    ) -> None:
        self.context, self._bank, self._references, self._pool = context, bank, references, pool
        self._training, self._recordings = training, recordings
        static = None if recordings is None else recordings.staging("models")
        self.models = {"models": StackedModel(self, "models", Staging(context.layout, bank.reader(references), static))}
        self.kept: dict[str, list[Tensor]] = {}
        self.memories: dict[str, KeptStates] = {}
        self.feed = Feed(context, references.owners.numpy(), training)
        self._source: BatchSource = self.feed
        self.clients = count = len(references)
        device = context.data.images.device
        if recordings is None:
            self.losses = torch.zeros(count, dtype=torch.float64, device=device)  # Sums over samples.
            self.weights = torch.zeros(count, dtype=torch.float64, device=device)  # Sums of these samples' weights.
            self.samples = torch.zeros(count, dtype=torch.long, device=device)
        else:
            self.losses, self.samples = recordings.losses[:count], recordings.samples[:count]
            self.weights = recordings.weights[:count]
        self.parameters = [entry for entry in context.layout.entries if not entry.is_buffer]
        self.buffers = [entry.name for entry in context.layout.entries if entry.is_buffer]
        self.trained: list[bool] = []
        self._numbers = self._first_numbers()
        self._phase: Phase | None = None
        self._counts = True  # True if the round reports the losses of the phase.
        self.own_loss = False  # True if a step has passed its own loss to `grad`.

    # --- interface for objectives -------------------------------------------------------------------------------------
    def model(self, name: str = "models") -> StackedModel:
        """Return the clients' models in a row set; see `JobContext.model`."""
        if name not in self.models:
            self._check(name)
            assert self._phase is not None
            reader = self._bank.reader(References.rows(name, self._references.owners))
            static = None if self._recordings is None else self._recordings.staging(name)
            self.models[name] = StackedModel(self, name, Staging(self.context.layout, reader, static))
            self.models[name].begin(self._phase.columns)
        return self.models[name]

    def rows(self, name: str) -> list[Tensor]:
        """Return the clients' rows of a row set, [k, *shape] for each parameter; see `JobContext.rows`."""
        self._check(name)
        return self.first(self.read(name))

    @property
    def lr(self) -> float | Tensor:
        """Learning rate of the round."""
        rate: float | Tensor = self._hyperparameters[0]["lr"]
        return rate

    def number(self, name: str) -> Tensor:
        """Return the clients' numbers, [k]; see `JobContext.number`."""
        self._check_number(name)
        return self._numbers[name][: self.clients].clone()  # `set_number` writes into this memory.

    def set_number(self, name: str, value: Tensor) -> None:
        """Replace the clients' numbers by others, [k]; see `JobContext.set_number`."""
        self._check_number(name)
        self._numbers[name][: self.clients].copy_(value.detach())

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return each client's inner product of two lists of tensors [k, *shape] over all parameters, [k]."""
        return torch.stack([_in_line(x * y).sum(1) for x, y in zip(a, b, strict=True)]).sum(0)

    def next_batch(self) -> StackedBatch:
        """Return the next batch of the first k clients; draw one more epoch for clients whose batches are all taken."""
        return self._source.next(self.clients)

    def loss(self, scores: Tensor, batch: Any) -> Tensor:
        """Return the run's own loss of one client's batch, a scalar; see `JobContext.loss`."""
        return self.context.config.loss(scores, batch.labels)

    # --- execution ----------------------------------------------------------------------------------------------------
    def run(self) -> dict[str, Staging]:
        """Run all phases, and return the models by row set."""
        phases = [phase for phase in self._training.phases if not phase.duration.is_empty]
        for phase in phases:
            self._run(phase, phase is phases[-1])
        return {name: model.staging for name, model in self.models.items()}

    def _run(self, phase: Phase, last: bool) -> None:
        self._freeze(phase.columns)
        self._phase = phase
        for model in self.models.values():
            model.begin(phase.columns)
        self.feed.draw(phase.duration)
        self._hyperparameters = self._training.hyperparameters
        recording = None
        if self._recordings is not None:
            recording = self._recordings.begin(phase, self.feed, self._hyperparameters)
        if recording is not None:
            self._hyperparameters = recording.take(self._hyperparameters)
        step = phase.objective.step if recording is None else recording.step
        self._counts = phase.objective.reports_loss
        if self._counts:
            self.losses.zero_()  # The round reports the losses of the last phase.
            self.weights.zero_()
            self.samples.zero_()
        while self._narrow():
            self._pool.check()
            step(self)
        if last:
            self.clients = len(self._references)
            phase.objective.finish(self)
        for model in self.models.values():
            model.end()

    def optimizer(self, name: str) -> PrefixOptimizer | KeptOptimizer:
        """Make the optimizer of a row set's models for the phase's columns, with the clients' kept states if any."""
        memory = self._training.memory
        if memory is None:
            return self.fresh_optimizer()
        if name not in self.memories:
            assert self._phase is not None
            memory.check_models(name, self._phase.objective)
            context, owners = self.context, self._references.owners
            device = context.optimizer.device_of_numbers(context.data.images.device)
            self.memories[name] = KeptStates(memory, name, context.layout, self._bank, owners, device)
        return KeptOptimizer(self._make_optimizer, self.memories[name], self._places)

    def fresh_optimizer(self) -> PrefixOptimizer:
        """Make an optimizer for the phase's columns, without a state."""
        return PrefixOptimizer(self._make_optimizer)

    @property
    def _places(self) -> list[int]:
        """Indices of the parameters that the phase trains."""
        return [index for index, wanted in enumerate(self.trained) if wanted]

    @property
    def _make_optimizer(self) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
        make = self.context.optimizer.make
        return partial(make, places=self._places, hyperparameters=self._hyperparameters)

    def on_buffers(
        self, clients: int, memory: _StaticMemory, source: BatchSource, states: dict[str, list[dict[str, Any]]]
    ) -> StackedJob:
        """Copy the job for a recorded step, which works on static memory.

        Args:
            clients: number of clients; they are the first ones.
            memory: the static memory of models, losses and counts.
            source: the source of batches.
            states: states of the optimizers, by row set.
        """
        other = copy.copy(self)
        other.kept, other._source, other.clients = memory.kept, source, clients
        other.losses, other.samples, other._numbers = memory.losses, memory.samples, memory.numbers
        other.weights = memory.weights
        other.models = {
            name: model.of_job(other, memory.staging(name), states.get(name, [])) for name, model in self.models.items()
        }
        return other

    def mean_gradients(self) -> list[Tensor]:
        """Return gradients of each client's mean loss over its data, or its first batches, [c, *shape] each."""
        main = self.models["models"]
        self._freeze(self.context.layout.all)
        self.feed.draw(Duration(1))
        total = [torch.zeros_like(p) for p in main.params]
        taken = 0
        while self._narrow() and taken != (self._training.batches or None):
            self._pool.check()
            taken += 1
            batch = self.next_batch()
            for t, g in zip(total, main.grad(batch), strict=True):
                amounts = self.context.loss.amounts(batch.labels, batch.weights, batch.counts)
                t[: self.clients] += g * along(amounts.to(g.dtype), g)
        weights = torch.where(self.weights > 0, self.weights, 1.0).to(total[0].dtype)
        return [t / along(weights, t) for t in total]

    @property
    def numbers(self) -> dict[str, Tensor]:
        """Present numbers of all clients of the job, [c] by name."""
        count = len(self._references)
        return {name: values[:count] for name, values in self._numbers.items()}

    def first(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return views of the first k clients' part of each tensor."""
        return [t[: self.clients] for t in tensors]

    def read(self, name: str) -> list[Tensor]:
        """Read a row set of all clients of the job; "" is the start. Each row set is read once and kept in `kept`."""
        if name not in self.kept:
            references = References.rows(name, self._references.owners) if name else self._references
            tensors = unpack(self.context.layout, self._bank.reader(references))
            self.kept[name] = tensors if self._recordings is None else self._recordings.keep(name, tensors)
        return self.kept[name]

    def stretches(self, batch: StackedBatch) -> list[tuple[int, int]]:
        """Divide the clients into stretches [first, stop) that are computed together.

        There is one stretch, unless samples of a batch interact (as in batch norms) and padding would change results:
        then a stretch has neighbours with equally many samples.
        """
        network = self.context.network
        if network.masks_padding or not network.couples_samples:
            return [(0, len(batch.sizes))]
        stretches, first = [], 0
        for _, same in groupby(batch.sizes):
            stop = first + len(list(same))
            stretches.append((first, stop))
            first = stop
        return stretches

    def _narrow(self) -> bool:
        """Set k to the number of clients with batches left; return False if there is none."""
        self.clients = self.feed.waiting()
        return bool(self.clients)

    def _freeze(self, columns: Columns) -> None:
        """Freeze all parameters outside of `columns`."""
        self.trained = [entry.trainable and columns.holds(entry) for entry in self.parameters]

    def _first_numbers(self) -> dict[str, Tensor]:
        """Copy the clients' numbers at the start of the job to the memory that steps use."""
        device, dtype, numbers = self.context.data.images.device, self.context.config.dtype, {}
        for name in self._training.numbers:
            values = self._bank.number(name)[self._references.owners].to(device, dtype)
            numbers[name] = values if self._recordings is None else self._recordings.keep_number(name, values)
        return numbers

    def _check_number(self, name: str) -> None:
        undeclared = "" if self._phase is None else self._phase.objective.declares_number(name)
        if undeclared:
            raise UserError(undeclared)

    def _check(self, name: str) -> None:
        undeclared = "" if self._phase is None else self._phase.objective.declares(name)
        if undeclared:
            raise UserError(undeclared)


def clip_norms(grads: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scale down each client's gradients, [k, *shape] each, to a Euclidean norm of at most `largest`.

    The norm is over all parameters of a client.
    """
    scale = (largest / (lengths(grads) + 1e-6)).clamp(max=1.0)
    return [g * along(scale, g) for g in grads]


def lengths(grads: Sequence[Tensor]) -> Tensor:
    """Compute the Euclidean length of each client's gradient, [k], from tensors [k, *shape] for all parameters."""
    norms = torch.stack([torch.linalg.vector_norm(_in_line(g), dim=1) for g in grads])
    return torch.linalg.vector_norm(norms, dim=0)


def _in_line(tensor: Tensor) -> Tensor:
    """Flatten a tensor [k, *shape] to [k, numbers], also if the shape is empty."""
    return tensor.unsqueeze(-1).flatten(1)


def along(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Reshape clients' numbers [k] to [k, 1, ...], so that they multiply a stacked tensor [k, ...]."""
    return numbers.view(-1, *[1] * (tensor.dim() - 1))
