"""Steps of a cohort that are recorded once and then replayed: on a GPU, launching them costs more than doing them.

A recording knows addresses, not names. So everything that a step reads or writes lies still from round to round:
models, optimizer state, batches, learning rate, sums of losses. A step is recorded for a *bucket* of clients, a few
sizes that falling numbers of clients are rounded up to; the clients in between, who are done, go through it too and get
their numbers back afterwards.
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
"""Phases with fewer steps are not recorded: it would cost more than it gains."""

MOST_BUCKETS = 8

Replay = Callable[[], object]


class Recorder(Protocol):
    """What records a step."""

    def record(self, step: Callable[[], None]) -> Replay:
        """Call `step` as often as it takes to know it; return what does the same again, on the same memory."""


class CudaGraphs:
    """Records with CUDA graphs, which share one pool of memory: nothing in it outlives a replay."""

    def __init__(self) -> None:
        self._pool, self._side = torch.cuda.MemPool(), torch.cuda.Stream()

    def record(self, step: Callable[[], None]) -> Replay:
        """Once to warm up, on a stream of its own as torch asks for, and once to record.

        Both times in the pool, so that activations are there once. What steps before left in torch's cache is given
        back first.
        """
        present = torch.cuda.current_stream()
        torch.cuda.empty_cache()
        try:
            self._side.wait_stream(present)
            with torch.cuda.stream(self._side), torch.cuda.use_mem_pool(self._pool):
                step()
            present.wait_stream(self._side)
            graph = torch.cuda.CUDAGraph()  # all versions of torch take the pool's id, only new ones the pool itself
            with torch.cuda.graph(graph, pool=self._pool.id, stream=self._side):  # type: ignore[arg-type]
                step()
        finally:
            torch.cuda.set_stream(present)  # a recording that fails leaves its own one
        return graph.replay


def obstacle(context: StackedContext, example: Tensor) -> str:
    """Why the steps of a run cannot be recorded, in a few words; empty where they can.

    Args:
        context: what the jobs of the engine have in common.
        example: two inputs, [2, ...].
    """
    config, network = context.config, context.network
    with torch.no_grad():
        per_sample = network.network.eval()(example).dim() == 2
    for phase in config.objective.phases(context.layout, Duration(1), 0):
        if _tape_name(phase.objective, config.objective) is None:
            return f"objective {type(config.objective).__name__} leaves steps to another one"
        if not phase.objective.recordable:
            return f"objective {type(phase.objective).__name__} does not say recordable = True"
    if context.loss.is_cross_entropy and not per_sample:
        return "the loss is a cross-entropy of several answers a sample"
    if not context.optimizer.works_on_tensors_alone(context.data.images.device):
        return "the optimizer needs numbers on the CPU"
    if config.keeps_optimizer:
        return "model.keep_optimizer goes on from states that recorded steps do not know"
    if config.scheduled:
        return f"the schedule changes {' and '.join(config.scheduled)}, which a recorded step keeps"
    return ""


def _tape_name(rule: LocalRule, own: LocalRule) -> str | None:
    """What the recorded steps of a rule are kept by; None where each phase may have another object."""
    name: str | None = vars(type(rule)).get("recorded_as")  # not inherited: a subclass may have steps of its own
    return name or ("the run's own" if rule is own else None)


def buckets_of(clients: int) -> list[int]:
    """Numbers of clients that steps are recorded for, ascending.

    Examples:
        >>> buckets_of(100), buckets_of(3), buckets_of(1)
        ([2, 4, 7, 13, 25, 50, 75, 100], [1, 2, 3], [1])
    """
    halves = [-(-clients // 2**power) for power in range(1, MOST_BUCKETS - 1)]
    return sorted({clients, -(-3 * clients // 4), *halves})


class Recordings:
    """The memory of one cohort that lies still, and the steps recorded on it.

    Args:
        context: what the jobs of an engine have in common.
        clients: of the cohort, c.
        recorder: see `Recorder`.

    Attributes:
        losses: sums over samples, float64 [c].
        samples: numbers of samples, int64 [c].
        weights: sums of their weights, float64 [c].
        kept: row sets that the objective reads, [c, *shape] for each parameter.
        numbers: the clients' numbers, [c] by name.
        failure: why nothing is recorded any more; empty while it is.
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
        """Models of c clients, of a row set."""
        if name not in self._stagings:
            make = self._zeros
            self._stagings[name] = Staging(self.context.layout, lambda start, stop: make(self.clients, stop - start))
        return self._stagings[name]

    @property
    def stagings(self) -> list[Staging]:
        """Of all row sets that have been trained."""
        return list(self._stagings.values())

    def keep(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy a row set's tensors to static memory.

        Args:
            name: of the row set.
            tensors: [k, *shape] each.

        Returns:
            The copies, views of the static memory.
        """
        if name not in self.kept:
            self.kept[name] = [t.new_empty_strided((self.clients, *t.shape[1:]), t.stride()).zero_() for t in tensors]
        return [still[: len(t)].copy_(t) for still, t in zip(self.kept[name], tensors, strict=True)]

    def keep_number(self, name: str, values: Tensor) -> Tensor:
        """Copy the clients' numbers to static memory, all of which is returned, [c].

        Args:
            name: of the number.
            values: [k].
        """
        if name not in self.numbers:
            self.numbers[name] = self._zeros(self.clients)
        self.numbers[name][: len(values)].copy_(values)
        return self.numbers[name]

    def begin(self, phase: Phase, feed: Feed, hyperparameters: Hyperparameters) -> Recording | None:
        """The recorded steps of a phase that begins now; None if it has too few steps, or options that change.

        Recorded are phases of the run's own objective, and of rules that allow it by `recorded_as`: fine-tuning has a
        new object of plain descent at every evaluation, but its steps read nothing that differs between objects.

        Args:
            phase: what the steps do.
            feed: the batches of the phase.
            hyperparameters: of each parameter group.
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
        """Record nothing any more, and forget what has been."""
        self.failure = f"a step cannot be recorded ({reason(error)})"
        for recording in self._of.values():
            recording.forget()
        warnings.warn(f"cuda_graphs: from now on steps are not recorded: {self.failure}", UserWarning, stacklevel=2)
        give_back(self.losses.device)


class Recording:
    """The steps of one phase.

    Args:
        memory: what they work on.

    Attributes:
        rates: learning rate of each of the optimizer's groups, []; torch's fused kernels read them as float32.
    """

    def __init__(self, memory: Recordings) -> None:
        self._memory = memory
        device, groups = memory.losses.device, memory.context.optimizer.groups
        self.rates = [torch.zeros((), device=device) for _ in groups]
        self._states: dict[str, list[dict[str, Any]]] = {}  # of the optimizer of each row set's models
        self._models: tuple[str, ...] = ()  # row sets whose models a step works on
        self._batches: StaticBatches | None = None
        self._replays: dict[tuple[int, bool], Replay] = {}  # by bucket, and whether batches may be padded
        self._read: tuple[str, ...] = ()  # row sets that a step reads; "" is the start
        self._zeros: bool | None = None  # whether a state of zeros is as good as none; see `starts_from_zeros`
        self._own_loss = False  # whether a step has a loss of its own, which wants to know how long batches are
        self._aside: tuple[tuple[int, int], list[Tensor], list[Tensor]] | None = None

    def begin(self, phase: Phase) -> None:
        """A phase begins, in a new round for example: with a fresh state of the optimizer."""
        self._phase, self._first, self._clients = phase, True, 0

    def take(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """The learning rates of a round, put where they lie still; other options stay as they are (see `obstacle`)."""
        present = []
        for rate, fields, options in zip(
            self.rates, hyperparameters, self._memory.context.optimizer.groups, strict=True
        ):
            still: dict[str, Any] = {"lr": rate.fill_(fields["lr"])}
            if rate.is_cuda and "capturable" in options:
                still["capturable"] = True  # its step counts stay on the device
            present.append(still)
        return tuple(present)

    def step(self, job: StackedJob) -> None:
        """One step of the phase for the first `job.clients`."""
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
            step(job.on_buffers(job.clients, self._memory, self._batches, self._states))  # its batches have been taken
            return
        done = slice(job.clients, min(bucket, self._clients))
        self._keeping(done, self._replays[bucket, padded])

    def forget(self) -> None:
        """Let go of what has been recorded."""
        self._replays, self._aside = {}, None

    def _starts_from_zeros(self, job: StackedJob) -> bool:
        """Begin with states of zeros instead of none, so that the first step, too, is a replay.

        Not where the optimizer begins in another way, nor in the very first phase, whose first step shows how many
        batches a step takes and what the optimizer remembers.
        """
        if self._zeros is None:
            trained = [like for like, wanted in zip(job.model().params, job.trained, strict=True) if wanted]
            self._zeros = job.fresh_optimizer().starts_from_zeros(trained[0], len(trained)) if trained else True
        if self._batches is None or not self._zeros:
            return False
        for value in self._remembered():
            value.zero_()
        for name in self._read:  # of this round, before anything changes
            job.read(name)
        for name in self._models:
            model = job.model(name)
            model.optimizer = job.fresh_optimizer().on_buffers(self._states[name]) if name in self._states else None
        return True

    def _settle(self, job: StackedJob, batches: int) -> None:
        """Move what the first step has made to where it lies still."""
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
                    place = static[name][: len(value)] if value.dim() else static[name]
                    state[name] = place.copy_(value)

    def _static(self, value: Any) -> Any:
        if not torch.is_tensor(value) or not value.dim():
            return value.clone() if torch.is_tensor(value) else value
        return value.new_zeros((self._memory.clients, *value.shape[1:]))

    def _record(self, job: StackedJob, bucket: int, padded: bool, exact: bool) -> bool:
        """Record the step for the first `bucket` clients, and undo what that did; see `StaticBatches.padded`.

        Returns:
            Whether that was possible. If not, nothing is recorded any more.
        """
        assert self._batches is not None
        self._batches.padded, self._batches.exact = padded, exact
        other = job.on_buffers(bucket, self._memory, self._batches, self._states)
        touched = [*self._touched(), *(value for value in self._remembered() if not value.dim())]
        step, before = self._phase.objective.step, list[Tensor]()
        try:
            before = [tensor.clone() for tensor in touched]
            self._replays[bucket, padded] = self._memory.recorder.record(lambda: step(other))
        except Exception as error:  # of the user's operations too, which then fail or not without being recorded
            self._memory.give_up(error)
        for tensor, value in zip(touched, before, strict=False):  # none where there was no memory for copies
            tensor.copy_(value)
        self._batches.rewind()
        return not self._memory.failure

    def _touched(self) -> list[Tensor]:
        """Everything that a step changes and that has a row for each client."""
        memory = self._memory
        states = [value for value in self._remembered() if value.dim()]
        models = [tensor for staging in memory.stagings for tensor in staging.tensors.values()]
        return [*models, *states, memory.losses, memory.samples, memory.weights, *memory.numbers.values()]

    def _remembered(self) -> list[Tensor]:
        several = (state for states in self._states.values() for state in states)
        return [value for state in several for value in state.values() if torch.is_tensor(value)]

    def _keeping(self, rows: slice, replay: Replay) -> None:
        """Replay, but leave the rows of clients who are done as they are."""
        if rows.start >= rows.stop:
            replay()
            return
        if self._aside is None or self._aside[0] != (rows.start, rows.stop):
            places = [tensor[rows] for tensor in self._touched()]
            self._aside = ((rows.start, rows.stop), places, [torch.empty_like(place) for place in places])
        _, places, aside = self._aside
        torch._foreach_copy_(aside, places)
        replay()
        torch._foreach_copy_(places, aside)


class StaticBatches:
    """Where the batches of a step are put before it is replayed; each is padded to full size.

    Args:
        memory: of the cohort.
        batches: that a step takes.

    Attributes:
        padded: whether batch norms of a step have to look for padding; a recording for whole batches is shorter.
        exact: whether all batches are known to be of full size.
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
        """Take the batches of the next step."""
        for turn in range(self.batches):
            taken, real, _ = job.feed.take(job.clients)
            self._index[turn, : job.clients].copy_(taken)
            self._counts[turn, : job.clients].copy_(real)
            if self._context.network.has_dropout:
                self._masks[turn, : job.clients].copy_(job.feed.masks)
            if self._drawn is not None and job.feed.drawn is not None:
                self._drawn[turn, : job.clients].copy_(job.feed.drawn)

    def rewind(self) -> None:
        """Begin with the first batch again, wherever a step has ended."""
        self._next = 0

    def next(self, clients: int) -> StackedBatch:
        """The batches in turn, gathered inside the step."""
        turn, self._next = self._next, (self._next + 1) % self.batches
        config = self._context.config
        drawn = None if self._drawn is None else self._drawn[turn, :clients]
        inputs, labels = self._context.data.batch(self._index[turn, :clients], dtype=config.dtype, draws=drawn)
        counts = self._counts[turn, :clients]
        weights = sample_weights(counts, config.batch_size, config.dtype)
        sizes, masks = [config.batch_size] * clients, self._masks[turn, :clients]
        return StackedBatch(inputs, labels, sizes, counts, weights, self.padded, masks, exact=self.exact)
