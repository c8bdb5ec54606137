"""Recorded steps of a cohort, which are replayed: on a GPU, launching the kernels of a step may cost most of its time.

A recording contains addresses, not names. So all that a step reads or writes is in static memory, at the same addresses
in all rounds: models, optimizer states, batches, learning rates, sums of losses. Steps are recorded for a few numbers
of clients, the *buckets*. When the number of clients with steps left falls, it is rounded up to the next bucket:
clients that have finished take part in the replay, and get their values back afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from dfl_lightning.bank.card import give_back
from dfl_lightning.bank.layout import Columns
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.engines.stacked.batches import Feed, StackedBatch
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.loss import sample_weights
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.utils.errors import reason

if TYPE_CHECKING:
    from dfl_lightning.engines.local_work import LocalRule, Phase
    from dfl_lightning.engines.stacked.training import StackedJob

FEWEST_STEPS = 8
"""Least number of steps of a phase that is recorded; with fewer, recording would cost more than it saves."""

MOST_BUCKETS = 8
"""Largest number of buckets."""

Replay = Callable[[], object]


class Recorder(Protocol):
    """Recorder of steps."""

    def record(self, step: Callable[[], None]) -> Replay:
        """Call `step` as often as needed; return a function that does the same again, on the same memory."""


class CudaGraphs:
    """Recorder with CUDA graphs, which share one memory pool, since none of its tensors is needed after a replay."""

    def __init__(self) -> None:
        self._pool, self._side = torch.cuda.MemPool(), torch.cuda.Stream()

    def record(self, step: Callable[[], None]) -> Replay:
        """Call the step once to warm up, on a side stream as torch requires, and once to record it.

        Both calls use the pool, so that it holds activations only once. Torch's cache is emptied first.
        """
        present = torch.cuda.current_stream()
        torch.cuda.empty_cache()
        try:
            self._side.wait_stream(present)
            with torch.cuda.stream(self._side), torch.cuda.use_mem_pool(self._pool):
                step()
            present.wait_stream(self._side)
            graph = torch.cuda.CUDAGraph()  # All versions of torch accept the pool's id, only new ones the pool itself.
            with torch.cuda.graph(graph, pool=self._pool.id, stream=self._side):  # type: ignore[arg-type]
                step()
        finally:
            torch.cuda.set_stream(present)  # A recording that fails leaves its side stream set.
        return graph.replay


def can_record() -> bool:
    """Return True if this version of torch has the memory pools that recordings share."""
    return hasattr(torch.cuda, "MemPool")


def obstacle(context: StackedContext, example: Tensor) -> str:
    """Say in a few words why the steps of a run cannot be recorded; return an empty string if they can.

    Args:
        context: the parts that all jobs of the engine share.
        example: two inputs, [2, ...].
    """
    config, network = context.config, context.network
    with torch.no_grad():
        per_sample = network.network.eval()(example).dim() == 2
    for phase in config.objective.phases(context.layout, Duration(1), 0):
        if _tape_name(phase.objective, config.objective) is None:
            return f"objective {type(config.objective).__name__} leaves steps to another objective"
        if not phase.objective.recordable:
            return f"objective {type(phase.objective).__name__} does not declare recordable = True"
    if context.loss.is_cross_entropy and not per_sample:
        return "the loss is a cross-entropy with several targets for each sample"
    if not context.optimizer.works_on_tensors_alone(context.data.images.device):
        return "the optimizer needs numbers on the CPU"
    if getattr(context.data.augment, "on_cpu", False):
        return "data.augment is a function of one sample, which runs on the CPU"
    if config.keeps_optimizer:
        return "model.keep_optimizer continues from states that recorded steps do not read"
    if config.later_batch_sizes:
        return "model.batch_growth changes the size of batches, and a recorded step has one size"
    if config.scheduled:
        return f"the schedule changes {' and '.join(config.scheduled)}, which a recorded step cannot change"
    return ""


def _tape_name(rule: LocalRule, own: LocalRule) -> str | None:
    """Return the name under which a rule's recorded steps are kept; None if each phase may have another object."""
    name: str | None = vars(type(rule)).get("recorded_as")  # Not inherited: a subclass may have another `step`.
    return name or ("the run's own" if rule is own else None)


def buckets_of(clients: int) -> list[int]:
    """Return the numbers of clients for which steps are recorded, ascending.

    Examples:
        >>> buckets_of(100), buckets_of(3), buckets_of(1)
        ([2, 4, 7, 13, 25, 50, 75, 100], [1, 2, 3], [1])
    """
    halves = [-(-clients // 2**power) for power in range(1, MOST_BUCKETS - 1)]
    return sorted({clients, -(-3 * clients // 4), *halves})


class Recordings:
    """Static memory of a cohort, and the steps that are recorded on it.

    Args:
        context: the parts that all jobs of the engine share.
        clients: number of clients of the largest cohort, c.
        recorder: see `Recorder`.

    Attributes:
        losses: sums of losses over samples, float64 [c].
        samples: numbers of samples, int64 [c].
        weights: sums of the samples' weights, float64 [c].
        kept: row sets that the objective reads, by name: [c, *shape] for each parameter.
        numbers: the clients' numbers, [c] by name.
        failure: reason why steps are not recorded any more; empty if they are.
    """

    def __init__(self, context: StackedContext, clients: int, recorder: Recorder) -> None:
        device = context.data.images.device
        self.context, self.clients, self.recorder = context, clients, recorder
        self.buckets = buckets_of(clients)
        zeros = partial(torch.zeros, dtype=context.config.dtype, device=device)
        self._zeros = zeros
        self._stagings: dict[str, Staging] = {}
        self.staging("models")
        self.losses = torch.zeros(clients, dtype=torch.float64, device=device)
        self.samples = torch.zeros(clients, dtype=torch.long, device=device)
        self.weights = torch.zeros(clients, dtype=torch.float64, device=device)
        self.kept: dict[str, list[Tensor]] = {}
        self.numbers: dict[str, Tensor] = {}
        self.failure = ""
        self._of: dict[tuple[str, Columns], Recording] = {}

    def staging(self, name: str) -> Staging:
        """Return the static memory for models of c clients in a row set; allocate it in the first call."""
        if name not in self._stagings:
            make = self._zeros
            self._stagings[name] = Staging(self.context.layout, lambda start, stop: make(self.clients, stop - start))
        return self._stagings[name]

    @property
    def stagings(self) -> list[Staging]:
        """Static memory of all row sets that have been trained."""
        return list(self._stagings.values())

    def keep(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy a row set's tensors to static memory.

        Args:
            name: name of the row set.
            tensors: [k, *shape] each.

        Returns:
            The copies, views of the static memory.
        """
        if name not in self.kept:
            self.kept[name] = [t.new_empty_strided((self.clients, *t.shape[1:]), t.stride()).zero_() for t in tensors]
        return [still[: len(t)].copy_(t) for still, t in zip(self.kept[name], tensors, strict=True)]

    def keep_number(self, name: str, values: Tensor) -> Tensor:
        """Copy the clients' numbers [k] to the first k entries of static memory, and return all of it, [c]."""
        if name not in self.numbers:
            self.numbers[name] = self._zeros(self.clients)
        self.numbers[name][: len(values)].copy_(values)
        return self.numbers[name]

    def begin(self, phase: Phase, feed: Feed, hyperparameters: Hyperparameters) -> Recording | None:
        """Begin a phase, and return its recorded steps; None if it has too few steps, or other options than `lr`.

        Phases of the run's own objective are recorded, and those of rules that allow it by `recorded_as`: fine-tuning
        uses a new object of plain descent in every evaluation, but the steps of these objects do not differ.

        Args:
            phase: the phase.
            feed: the source of the phase's batches.
            hyperparameters: options of each parameter group.
        """
        name = _tape_name(phase.objective, self.context.config.objective)
        if self.failure or name is None or feed.steps < FEWEST_STEPS:
            return None
        if any(set(fields) != {"lr"} for fields in hyperparameters):
            return None
        key = (name, phase.columns)
        if key not in self._of:
            self._of[key] = Recording(self)
        self._of[key].begin(phase)
        return self._of[key]

    def give_up(self, error: Exception) -> None:
        """Stop recording for the rest of the run, forget all recordings, and warn."""
        self.failure = f"a step cannot be recorded ({reason(error)})"
        for recording in self._of.values():
            recording.forget()
        warnings.warn(f"cuda_graphs: from now on steps are not recorded: {self.failure}", UserWarning, stacklevel=2)
        give_back(self.losses.device)


class Recording:
    """Recorded steps of one phase.

    Args:
        memory: the static memory.

    Attributes:
        rates: learning rate of each of the optimizer's groups, a scalar tensor; float32, as torch's fused kernels need.
    """

    def __init__(self, memory: Recordings) -> None:
        self._memory = memory
        device, groups = memory.losses.device, memory.context.optimizer.groups
        self.rates = [torch.zeros((), device=device) for _ in groups]
        self._states: dict[str, list[dict[str, Any]]] = {}  # Optimizer states by the row set of the models.
        self._models: tuple[str, ...] = ()  # Row sets whose models a step trains.
        self._batches: StaticBatches | None = None
        self._replays: dict[tuple[int, bool], Replay] = {}  # By bucket, and by whether batches may be padded.
        self._read: tuple[str, ...] = ()  # Row sets that a step reads; "" is the start.
        self._zeros: bool | None = None  # True if a state of zeros equals no state; see `starts_from_zeros`.
        self._own_loss = False  # True if a step passes its own loss to `grad`, which needs exact batch sizes.
        self._aside: tuple[tuple[int, int], list[Tensor], list[Tensor]] | None = None

    def begin(self, phase: Phase) -> None:
        """Begin a phase, for example in a new round, with a fresh state of the optimizer."""
        self._phase, self._first, self._clients = phase, True, 0

    def take(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Copy the round's learning rates to static memory, and return the options that steps read."""
        present = []
        for rate, fields, options in zip(
            self.rates, hyperparameters, self._memory.context.optimizer.groups, strict=True
        ):
            still: dict[str, Any] = {"lr": rate.fill_(fields["lr"])}
            if rate.is_cuda and "capturable" in options:
                still["capturable"] = True  # Then the optimizer's step counts stay on the device.
            present.append(still)
        return tuple(present)

    def step(self, job: StackedJob) -> None:
        """Do one step of the phase for the first `job.clients` clients, by a replay if possible."""
        step, feed = self._phase.objective.step, job.feed
        if self._memory.failure:
            step(job)
            return
        if self._first:
            self._first, self._clients = False, job.clients
            if not self._starts_from_zeros(job):
                taken = feed.taken
                step(job)
                self._settle(job, feed.taken - taken)
                return
        assert self._batches is not None
        network, masks_all = (
            self._memory.context.network,
            self._memory.context.loss.task is not None and not self._own_loss,
        )
        whole = masks_all and not network.couples_samples
        whole = whole or feed.whole(job.clients, self._batches.batches)
        padded = not whole
        if padded and not (masks_all and network.masks_padding):
            step(job)
            return
        self._batches.fill(job)
        bucket = next(size for size in self._memory.buckets if size >= job.clients)
        if (bucket, padded) not in self._replays and not self._record(job, bucket, padded, exact=not masks_all):
            # The batches have been taken already, so the ordinary step reads them from static memory.
            step(job.on_buffers(job.clients, self._memory, self._batches, self._states))
            return
        done = slice(job.clients, min(bucket, self._clients))
        self._keeping(done, self._replays[bucket, padded])

    def forget(self) -> None:
        """Delete all recordings of the phase."""
        self._replays, self._aside = {}, None

    def _starts_from_zeros(self, job: StackedJob) -> bool:
        """Try to begin with states of zeros instead of none, so that the first step, too, can be a replay.

        Returns:
            False if zeros are not the optimizer's first state, and in the first phase, whose first step must show how
            many batches a step takes and which states the optimizer has.
        """
        if self._zeros is None:
            trained = [like for like, wanted in zip(job.model().params, job.trained, strict=True) if wanted]
            self._zeros = job.fresh_optimizer().starts_from_zeros(trained[0], len(trained)) if trained else True
        if self._batches is None or not self._zeros:
            return False
        for value in self._remembered():
            value.zero_()
        for name in self._read:  # Read the rows of this round before any step changes them.
            job.read(name)
        for name in self._models:
            model = job.model(name)
            model.optimizer = job.fresh_optimizer().on_buffers(self._states[name]) if name in self._states else None
        return True

    def _settle(self, job: StackedJob, batches: int) -> None:
        """Move the optimizer states that the first step has created to static memory, and note what a step uses."""
        if self._batches is None or self._batches.batches != batches:
            self._batches, self._replays = StaticBatches(self._memory, batches), {}
        self._read, self._models, self._own_loss = tuple(job.kept), tuple(job.models), job.own_loss
        for model in job.models.values():
            if isinstance(model.optimizer, PrefixOptimizer):
                self._settle_states(model.name, model.optimizer.states())

    def _settle_states(self, model: str, states: list[dict[str, Any]]) -> None:
        if model not in self._states:
            self._states[model] = [{name: self._static(value) for name, value in state.items()} for state in states]
        for state, static in zip(states, self._states[model], strict=True):
            for name, value in state.items():
                if torch.is_tensor(value):
                    target = static[name][: len(value)] if value.dim() else static[name]
                    state[name] = target.copy_(value)

    def _static(self, value: Any) -> Any:
        if not torch.is_tensor(value) or not value.dim():
            return value.clone() if torch.is_tensor(value) else value
        return value.new_zeros((self._memory.clients, *value.shape[1:]))

    def _record(self, job: StackedJob, bucket: int, padded: bool, exact: bool) -> bool:
        """Record the step for the first `bucket` clients, and undo its changes; see `StaticBatches` for the flags.

        Returns:
            True if it has been recorded. If False, the rest of the run is not recorded.
        """
        assert self._batches is not None
        self._batches.padded, self._batches.exact = padded, exact
        other = job.on_buffers(bucket, self._memory, self._batches, self._states)
        touched = [*self._touched(), *(value for value in self._remembered() if not value.dim())]
        step, before = self._phase.objective.step, list[Tensor]()
        try:
            before = [tensor.clone() for tensor in touched]
            self._replays[bucket, padded] = self._memory.recorder.record(lambda: step(other))
        except Exception as error:  # If a user's operation fails, it fails again in the ordinary step.
            self._memory.give_up(error)
        for tensor, value in zip(touched, before, strict=False):  # `before` is empty if memory was short for copies.
            tensor.copy_(value)
        self._batches.rewind()
        return not self._memory.failure

    def _touched(self) -> list[Tensor]:
        """List all tensors that a step changes and that have a row for each client."""
        memory = self._memory
        states = [value for value in self._remembered() if value.dim()]
        models = [tensor for staging in memory.stagings for tensor in staging.tensors.values()]
        return [*models, *states, memory.losses, memory.samples, memory.weights, *memory.numbers.values()]

    def _remembered(self) -> list[Tensor]:
        several = (state for states in self._states.values() for state in states)
        return [value for state in several for value in state.values() if torch.is_tensor(value)]

    def _keeping(self, rows: slice, replay: Replay) -> None:
        """Run a replay, and restore the rows of clients that have finished."""
        if rows.start >= rows.stop:
            replay()
            return
        if self._aside is None or self._aside[0] != (rows.start, rows.stop):
            finished = [tensor[rows] for tensor in self._touched()]
            self._aside = ((rows.start, rows.stop), finished, [torch.empty_like(tensor) for tensor in finished])
        _, finished, aside = self._aside
        torch._foreach_copy_(aside, finished)
        replay()
        torch._foreach_copy_(finished, aside)


class StaticBatches:
    """Static memory for the batches of a step, filled before the step is replayed; batches are padded to full size.

    Args:
        memory: the static memory of the cohort.
        batches: number of batches that a step takes.

    Attributes:
        padded: True if batches may have padding, which batch norms must ignore; steps on whole batches are faster.
        exact: True if all batches are known to be of full size.
    """

    def __init__(self, memory: Recordings, batches: int) -> None:
        self.batches, self.padded = batches, False
        self._context = memory.context
        shape, device = (batches, memory.clients), memory.losses.device
        self._index = torch.zeros(*shape, self._context.config.batch_size, dtype=torch.long, device=device)
        self._counts = torch.ones(shape, dtype=torch.long, device=device)
        self._masks = torch.zeros(*shape, 2, dtype=torch.int32, device=device)
        self._drawn: Tensor | None = None
        if self._context.data.augment is not None:
            example = self._context.data.augment.draw(1, torch.Generator())
            self._drawn = example.new_zeros(*shape, self._context.config.batch_size, *example.shape[1:]).to(device)
        self.exact, self._next = False, 0

    def fill(self, job: StackedJob) -> None:
        """Take the batches of the next step from the job's feed."""
        for turn in range(self.batches):
            taken, real, _ = job.feed.take(job.clients)
            self._index[turn, : job.clients].copy_(taken)
            self._counts[turn, : job.clients].copy_(real)
            if self._context.network.has_dropout:
                self._masks[turn, : job.clients].copy_(job.feed.masks)
            if self._drawn is not None and job.feed.drawn is not None:
                self._drawn[turn, : job.clients].copy_(job.feed.drawn)

    def rewind(self) -> None:
        """Start again with the first batch."""
        self._next = 0

    def next(self, clients: int) -> StackedBatch:
        """Return the next batch, whose samples are gathered inside of the recorded step."""
        turn, self._next = self._next, (self._next + 1) % self.batches
        config = self._context.config
        drawn = None if self._drawn is None else self._drawn[turn, :clients]
        inputs, labels = self._context.data.batch(self._index[turn, :clients], dtype=config.dtype, draws=drawn)
        counts = self._counts[turn, :clients]
        weights = sample_weights(counts, config.batch_size, config.dtype)
        sizes, masks = [config.batch_size] * clients, self._masks[turn, :clients]
        return StackedBatch(inputs, labels, sizes, counts, weights, self.padded, masks, exact=self.exact)
