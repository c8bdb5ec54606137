"""What an engine is: cohorts of clients whose local work is done in one go, behind two calls."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.card import out_of_memory
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import Evaluation, References, Trained
from dfl_lightning.data import ClientData
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.engines.allocator import keep_freed_memory
from dfl_lightning.engines.cohorts import plan_cohorts
from dfl_lightning.engines.draws import Draws, batches_of
from dfl_lightning.engines.local_work import LocalRule, Phase
from dfl_lightning.engines.optimizers import Hyperparameters
from dfl_lightning.engines.placing import parts_of, set_mode
from dfl_lightning.utils.global_generators import name_of
from dfl_lightning.utils.thread_pool import Workers, workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

EVALUATION_BATCH = 1000
"""Samples in one call of a loss or a metric in an evaluation."""

COMPOSED_AT_ONCE = 32
"""Models put together from several rows that are tried in one go, on a CPU."""

GUEST_BYTES = 2**28
"""How much of the rows of other processes a process has for an evaluation at a time, about."""

Progress = Callable[[int, int], None]
"""Called from the main thread with (cohorts done, cohorts in total)."""


@dataclass(frozen=True)
class Training:
    """How the jobs of one call are trained.

    Args:
        purpose: names the draws, `local` or `finetune` for example; the same purpose and round draw the same batches.
        round: the round, 0-based.
        phases: epochs and columns, one after the other, each with a fresh optimizer.
        hyperparameters: options of each of the optimizer's groups in this round, in place of their own.
        gradients: update nothing; write the gradient of the mean loss at the reference instead.
        batches: with `gradients`: use only the first `batches` batches of the epoch (None: all data).
    """

    purpose: str
    round: int
    phases: tuple[Phase, ...]
    hyperparameters: Hyperparameters
    gradients: bool = False
    batches: int | None = None

    def draws(self, seed: int) -> Draws:
        """The named draws of this training."""
        return Draws(seed, self.purpose, self.round)


class Targets:
    """Where trained rows go: [own, width] of a row set each.

    Args:
        models: of the models that are exchanged.
        copy_of: name of another row set -> a copy of it, made where a model of it has been trained.

    Attributes:
        rows: by name; `models`, and others that have been trained.
    """

    def __init__(self, models: Tensor, copy_of: Callable[[str], Tensor]) -> None:
        self.rows = {"models": models}
        self._copy_of, self._lock = copy_of, threading.Lock()

    def __getitem__(self, name: str) -> Tensor:
        with self._lock:  # cohorts end in several threads
            if name not in self.rows:
                self.rows[name] = self._copy_of(name)
            return self.rows[name]


@dataclass(frozen=True)
class Plan:
    """How the jobs of an evaluation are put together, whatever the number of processes and threads.

    Args:
        home: long [J], the client in whose cohort a job is done; -1 for the global test set.
        shared_samples: jobs of one owner each, long, that are scored together on its samples.
        others: the other jobs, those of a cohort together, if they are not too many.
    """

    home: Tensor
    shared_samples: list[Tensor]
    others: list[Tensor]


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine needs to know about local work besides rows and data.

    Args:
        network: the plain network that rows are rows of; its own parameters are a scratch pad.
        optimizer: a `torch.optim` class with its arguments bound: parameters -> optimizer; see `ClientOptimizer`.
        loss: (outputs [B, ...], labels [B]) -> mean loss of the batch.
        metrics: torchmetrics by name, computed for each job.
        objective: the local training rule.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        seed: the run's seed.
        dtype: of rows and inputs.
        clip_norm: largest gradient norm of a client; None: no clipping.
        clip_value: largest absolute gradient entry; None: no clipping.
        reduced: layers compute in this type where torch's autocast finds it good enough; rows stay in `dtype`.
        tf32: on a GPU, products and convolutions may be TensorFloat32; see `float32_arithmetic`.
        cuda_graphs: record the steps of a GPU and replay them.
        processes: that share the clients.
        cohorts: least number of cohorts; None: as many as are fast, on a GPU as few as its memory has room for.
        room: bytes of a GPU that are free beside rows and data, the least of all processes; None: not known.
        scheduled: options of the optimizer, beside `lr`, that change from round to round.
        features: layers whose inputs the objective wants: its names -> names of the network's layers.
    """

    network: nn.Module
    optimizer: Callable[..., torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: dict[str, Any]
    objective: LocalRule
    batch_size: int
    seed: int
    dtype: torch.dtype = torch.float32
    clip_norm: float | None = None
    clip_value: float | None = None
    reduced: torch.dtype | None = None
    tf32: bool = False
    cuda_graphs: bool = False
    processes: int = 1
    cohorts: int | None = None
    room: int | None = None
    scheduled: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context of forward passes and losses in the present thread."""
        return nullcontext() if self.reduced is None else torch.autocast(device.type, self.reduced)


class Engine(ABC):
    """Trains and evaluates jobs cohort by cohort, several cohorts at once.

    Cohorts are a pure function of the config, each runs in one thread from beginning to end, and every random draw is
    named: bits depend on the config only, not on the number of threads.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.

    Attributes:
        cohorts: clients that are worked on together, int64 [c] each.
        details: what else was decided at the start, by name; for the summary.
        reason: why this engine was chosen, in a few words; empty where nothing else was possible or asked for.
        between_cohorts: called now and then from the main thread; raises to abandon the work (Ctrl-C).
    """

    name = "engine"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData) -> None:
        keep_freed_memory()
        self.config, self.layout, self.data = config, layout, data
        self.cohorts = plan_cohorts(self.steps, fewest=config.cohorts)
        self.reason = ""
        self.details: dict[str, Any] = {}
        self.between_cohorts: Callable[[], None] = lambda: None

    @cached_property
    def steps(self) -> list[int]:
        """Batches of an epoch of each client."""
        return [batches_of(len(samples), self.config.batch_size) for samples in self.data.train]

    @property
    def threads(self) -> int:
        """Cohorts that are worked on at once."""
        return 1 if self.data.images.is_cuda else min(torch.get_num_threads(), len(self.cohorts))

    @property
    @abstractmethod
    def cohort_bytes(self) -> int:
        """Predicted memory of the cohort under way that takes most, without rows and data."""

    @property
    def decisions(self) -> dict[str, Any]:
        """What a checkpoint keeps of what was found out about the device; empty where nothing was."""
        return {}

    def take_up(self, decisions: Mapping[str, Any]) -> None:
        """Go on as a former part of the run did.

        Args:
            decisions: from its checkpoint.
        """
        return  # on a CPU everything follows from the config

    def settle(self, ranks: Ranks) -> None:
        """Decide what is left to find out about the device before the first round; all processes decide alike."""
        return

    def out_of_memory(self, error: BaseException) -> str:
        """One sentence where local work takes more memory than there is."""
        return out_of_memory(error)

    def train(
        self, bank: Bank, references: References, training: Training, targets: Targets, progress: Progress | None
    ) -> Trained:
        """Train the jobs into their owners' rows of `targets`; all owners belong to this process."""
        count = len(references)
        losses = torch.full((count,), float("nan"), dtype=torch.float64)
        samples = torch.zeros(count, dtype=torch.long)
        finite = torch.ones(count, dtype=torch.bool)
        cohorts = self.by_cohort(references.owners)
        ended = 0

        set_mode(self.config.loss, True)

        def work(jobs: Tensor) -> Trained:
            with torch.enable_grad():  # also within an evaluation: fine-tuning
                return self.train_cohort(bank, references.take(jobs), training, targets, pool)

        def done(index: int, result: Trained) -> None:
            nonlocal ended
            ended += 1
            jobs = cohorts[index]
            losses[jobs], samples[jobs], finite[jobs] = result.losses, result.samples, result.finite
            if progress is not None:
                progress(ended, len(cohorts))

        with workers(self.threads) as pool, one_blas_thread():
            pool.map(work, cohorts, done, self.between_cohorts)
        return Trained(losses, samples, finite)

    @abstractmethod
    def evaluate(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Score each reference on its owner's `split` (`train`, `val`, `test`; owner -1: the global test set)."""

    @abstractmethod
    def train_cohort(
        self, bank: Bank, references: References, training: Training, targets: Targets, pool: Workers
    ) -> Trained:
        """Train the jobs of one cohort in the present thread; `pool.check` now and then."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what an evaluation computes beside losses."""
        return ("acc", *self.config.metrics)

    def rows_read(self, references: References) -> Tensor:
        """The row that each reference is, as it stands; -1 where it is put together from several."""
        term, *others = references.terms
        if others or term.which.is_floating_point():
            return torch.full_like(references.owners, -1)
        if not len(self.layout.personal):
            return term.which
        mine = (term.which == references.owners) & (term.rows == references.personal)
        return torch.where(mine, term.which, -1)

    def shared_samples(self, references: References, split: str) -> list[Tensor]:
        """Jobs of one owner each that are better tried together than with those that read the same models: none."""
        return []

    @property
    def composed_at_once(self) -> int:
        """Models put together from several rows that are tried in one go."""
        return COMPOSED_AT_ONCE

    def plan(self, references: References, split: str) -> Plan:
        """Which jobs of an evaluation are done in one go, and where; a pure function of the jobs.

        A model that is a row as it stands is tried in the cohort of that row, so that rows need not be brought
        together; others, and those that share samples, in the cohort of the owner.
        """
        read, owners = self.rows_read(references), references.owners
        home = torch.where((read >= 0) & (read < self.data.num_clients) & (owners >= 0), read, owners)
        shared_samples = self.shared_samples(references, split)
        rest = torch.ones(len(owners), dtype=torch.bool)
        for jobs in shared_samples:
            home[jobs], rest[jobs] = owners[jobs], False
        left, others = torch.nonzero(rest).squeeze(1), []
        for jobs in (left[places] for places in self.by_cohort(home[left])):
            composed = read[jobs] < 0
            others += [jobs[~composed], *jobs[composed].split(self.composed_at_once)]
        return Plan(home, shared_samples, [piece for piece in others if len(piece)])

    def waves(self, plan: Plan) -> list[Tensor]:
        """Jobs in portions of whole pieces, so that a process has few rows of others at a time.

        The same in all processes. Pieces of a process' cohorts are done at the same time, as far as there are threads.
        """
        cohort = self.cohort_of(plan.home)
        processes = self.config.processes
        piece_bytes = self.composed_at_once * self.layout.width * self.config.dtype.itemsize
        at_once = max(1, GUEST_BYTES // (piece_bytes * -(-len(self.cohorts) // processes)))
        portions: list[list[Tensor]] = []
        turn: Counter[int] = Counter()
        for piece in (*plan.shared_samples, *plan.others):
            place = int(cohort[piece[0]])
            number = turn[place] // at_once
            if number == len(portions):
                portions.append([])
            portions[number].append(piece)
            turn[place] += 1
        return [torch.cat(portion).sort().values for portion in portions]

    def cohort_of(self, owners: Tensor) -> Tensor:
        """Number of each owner's cohort; the one after the last for the global test set."""
        place = torch.full((self.data.num_clients + 1,), len(self.cohorts))
        for index, cohort in enumerate(self.cohorts):
            place[cohort] = index
        return place[owners]  # -1 is the last entry

    def by_cohort(self, owners: Tensor) -> list[Tensor]:
        """Indices of the jobs of each cohort, where there are any; the global test set (owner -1) comes last."""
        places = self.cohort_of(owners)
        order = torch.argsort(places, stable=True)
        counts = torch.bincount(places, minlength=len(self.cohorts) + 1)
        return [jobs for jobs in order.split(counts.tolist()) if len(jobs)]

    def drew(self, what: str, generators: str) -> str:
        """That somebody drew from global generators during the engine's work, and who it can have been.

        Args:
            what: the work.
            generators: their names.
        """
        config = self.config
        parts: dict[str, list[object]] = {
            "model.network": [config.network, *config.network.modules()],
            "model.loss": list(parts_of(config.loss)),
            "model.metrics": list(config.metrics.values()),
            "objective": [config.objective],
            "augmentation": [self.data.augment],
        }
        names = [
            f"{part} {name_of(things[0])}"
            for part, things in parts.items()
            if any(_is_users(thing) for thing in things)
        ]
        return (
            f"{what} draws from {generators}, whose state no checkpoint holds, so that a resumed run would differ "
            f"({' or '.join(names) or f'model.network {name_of(config.network)}'}); draw nothing there, "
            "except by dropout layers of torch.nn"
        )

    def samples(self, owner: int, split: str) -> Tensor:
        """Indices of the owner's images, int64; owner -1: the global test set."""
        if owner < 0:
            assert self.data.global_test is not None
            return self.data.global_test
        found: Tensor = getattr(self.data, split)[owner]
        return found


def _is_users(thing: object) -> bool:
    """Whether a part of local work is neither ours nor of the libraries that we use."""
    known = ("builtins", "dfl_lightning", "torch", "torchmetrics", "torchvision")
    return thing is not None and name_of(thing).partition(".")[0] not in known


def right_answers(scores: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Where the class with the highest score is the label; never where that score is no number, or infinite.

    Args:
        scores: one for each class, along dimension `classes`.
        labels: as many as answers.
        classes: which dimension.

    Example:
        >>> right_answers(torch.tensor([[0.1, 0.9], [torch.nan, 0.0]]), torch.tensor([1, 0]), classes=1)
        tensor([ True, False])
    """
    best = scores.max(dim=classes)  # a NaN is the highest: it would answer with the class where it stands
    return (best.indices == labels) & best.values.isfinite()
