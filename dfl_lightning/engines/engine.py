"""Base class of engines, which train and score the models of a bank cohort by cohort."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.card import one_sentence, out_of_memory
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.engines.allocator import keep_freed_memory
from dfl_lightning.engines.calling.global_draws import refuse_global_draws
from dfl_lightning.engines.cohorts import by_cohort, cohort_of, plan_cohorts
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.draws import batches_of
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.engines.jobs import Evaluation, Progress, Targets, Trained, Training
from dfl_lightning.engines.placing import set_mode
from dfl_lightning.engines.scoring.evaluation_plan import EvaluationPlan, plan_evaluation, portions
from dfl_lightning.engines.scoring.metric_failures import MetricFailures
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs
from dfl_lightning.utils.thread_pool import Workers, workers
from dfl_lightning.utils.words import nth_round

EVALUATION_BATCH = 1000
"""Samples in one call of a loss or a metric in an evaluation."""

ANY_SAMPLE = torch.tensor([0])
"""Index of a sample that gives the shapes of a network's outputs for a client without samples."""

COMPOSED_AT_ONCE = 32
"""Number of models combined from several rows that are scored together on a CPU."""

REMOTE_BYTES = 2**28
"""Approximate bytes of other processes' rows that a process holds at a time in an evaluation."""


class Engine(ABC):
    """Base class of engines, which train and score the models of a bank cohort by cohort, several cohorts at once.

    All processes of a run call `train`, `rehearse`, `gradients` and `evaluate` with the same arguments. Each process
    does the jobs of its own cohorts, and all get the results of all jobs. A subclass trains one cohort
    (`train_cohort`) and scores jobs (`score`).

    Cohorts are a pure function of the config, each runs in one thread from beginning to end, and every random draw is
    named: on one kind of processor bits depend on the config only, not on the number of threads.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.

    Attributes:
        bank: the models that the engine works on; see `attach`.
        details: further decisions made at the start, by name, for the summary.
        reason: reason for the choice of this engine, in a few words; empty if `auto` or the user chose it directly.
        between_cohorts: function that the main thread calls now and then; it raises to abandon the work (Ctrl-C).
        failures: errors of metrics in this process' evaluations.
    """

    name = "engine"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData) -> None:
        keep_freed_memory()
        self.config, self.layout, self.data = config, layout, data
        self.bank: Bank = None  # type: ignore[assignment]
        self.cohorts = plan_cohorts(self.steps, fewest=config.cohorts)
        self.reason = ""
        self.details: dict[str, Any] = {}
        self.between_cohorts: Callable[[], None] = lambda: None
        self.failures = MetricFailures(tuple(config.metrics))

    def attach(self, bank: Bank) -> None:
        """Set the bank whose models the engine works on, and give the bank the engine's cohorts and device."""
        self.bank = bank
        bank.cohorts, bank.device = self.cohorts, self.data.images.device

    @property
    def cohorts(self) -> list[Tensor]:
        """Clients that are trained together, int64 [c] for each cohort."""
        return self._cohorts

    @cohorts.setter
    def cohorts(self, cohorts: list[Tensor]) -> None:
        self._cohorts = cohorts
        if self.bank is not None:
            self.bank.cohorts = cohorts

    @cached_property
    def steps(self) -> list[int]:
        """Number of batches of each client's epoch."""
        return self.batches(self.config.batch_size)

    def batches(self, batch_size: int) -> list[int]:
        """Count the batches of each client's epoch, for batches of this size."""
        return [batches_of(count, batch_size) for count in self.data.sizes("train").tolist()]

    @property
    def threads(self) -> int:
        """Number of cohorts that are trained at the same time, each in a thread."""
        return 1 if self.data.images.is_cuda else min(torch.get_num_threads(), len(self.cohorts))

    @property
    @abstractmethod
    def cohort_bytes(self) -> int:
        """Predicted memory of the largest cohort while it is trained, in bytes, without rows and data."""

    @property
    def decisions(self) -> dict[str, Any]:
        """Decisions that were measured on the device, for a checkpoint; empty if all follows from the config."""
        return {}

    def restore_decisions(self, decisions: Mapping[str, Any]) -> None:
        """Restore the decisions of an earlier part of the run.

        Args:
            decisions: `decisions` as saved in its checkpoint.
        """
        return  # On a CPU everything follows from the config.

    def tune_to_device(self, ranks: Ranks) -> None:
        """Measure the device before the first round, and decide what depends on it, the same in all processes."""
        return

    def out_of_memory(self, error: BaseException) -> str:
        """Say in one sentence that local work needs more memory than the device has, with a remedy."""
        return out_of_memory(error)

    # --- requests ---------------------------------------------------------------------------------------------------
    def train(self, references: References, training: Training, progress: Progress | None = None) -> Trained:
        """Train each owner's model from its reference into the row set `trained`; other clients keep their row.

        Args:
            references: the models that training starts from, at most one for each client.
            training: purpose, round, phases; see `Training`.
            progress: called from the main thread after each cohort with (done, total).
        """
        target = self.bank.begin_training(len(references))
        result, targets = self._train(references, training, target, progress)
        self.bank.end_training(targets.rows, references, result.finite, result.numbers)
        return result

    def rehearse(self, references: References, training: Training, into: str) -> Trained:
        """Train into a row set made by `Bank.scratch`, and change nothing else.

        Args:
            references: the models that training starts from, at most one for each client.
            training: purpose, round, phases; see `Training`.
            into: name of the row set for the trained models; the row of a client without a job becomes its model.
        """
        self.bank.check_write(f"engine.rehearse(..., into='{into}')", into)
        target = self.bank.stored(into)
        target.copy_(self.bank.first_rows["models"])
        return self._train(references, training, target, None)[0]

    def gradients(self, references: References, training: Training) -> Tensor:
        """Return gradients of the mean training loss; no model is updated.

        Args:
            references: the models at which the gradients are taken, at most one for each client.
            training: purpose and round, which name the batches; see `Training`.

        Returns:
            [own, width]; zero rows for clients without a job.
        """
        self.bank.join_device()
        target = torch.zeros_like(self.bank.first_rows["models"])
        self._train(references, replace(training, gradients=True, memory=None, own=None), target, None)
        return target

    def evaluate(self, references: References, split: str) -> Evaluation:
        """Compute mean loss and metrics of each reference on its owner's data.

        All processes have all data. So most models are evaluated in the process that has their row, also on the data
        of another client; see `plan`.

        Args:
            references: the models; owner -1 is the global test set.
            split: `train`, `val` or `test`.

        Raises:
            ValueError: an owner is -1 and some parameters are personal: the global test set has none to complete the
                model with.
        """
        bank = self.bank
        bank.join_device()
        if self.layout.has_personal_parameters and bool((references.owners < 0).any()):
            raise ValueError("a model with personal parameters needs an owner; the global test set has none")
        ranks = bank.ranks
        with bank.timed("evaluate"), float32_arithmetic(self.config.tf32):
            if ranks.count == 1:
                with one_sentence(), refuse_global_draws(self.config, self.data, "an evaluation"):
                    return self.score(references, split)
            plan = self.plan(references, split)
            mine = ranks.at_home(plan.home)
            names = self.config.task.names
            table = torch.full((2 + len(self.metrics) + len(names), len(references)), math.nan, dtype=torch.float64)
            for wave in self.waves(plan.home, plan.pieces):
                here = wave[mine[wave]]
                jobs = references.take(here)
                with (
                    bank.with_remote_rows(jobs),
                    ranks.together(),
                    one_sentence(),
                    refuse_global_draws(self.config, self.data, "an evaluation"),
                ):
                    scores = self.score(jobs, split)
                assert scores.weights is not None
                lines = [scores.losses, scores.weights, *scores.metrics.values(), *scores.means.values()]
                table[:, here] = torch.stack(lines)
            losses, weights, *others = ranks.join(torch.nonzero(mine).squeeze(1), list(table))
            metrics, means = others[: len(self.metrics)], others[len(self.metrics) :]
            of_task = dict(zip(names, means, strict=True))
            return Evaluation(losses, dict(zip(self.metrics, metrics, strict=True)), weights, of_task)

    # --- execution --------------------------------------------------------------------------------------------------
    def _train(
        self, references: References, training: Training, target: Tensor, progress: Progress | None
    ) -> tuple[Trained, Targets]:
        """Train this process' clients into its rows of `target`.

        Returns:
            The results of all clients' jobs, and this process' rows of all row sets that were trained.
        """
        bank, ranks = self.bank, self.bank.ranks
        targets = Targets(target, lambda name: bank.stored(name).clone())
        mine = torch.nonzero(ranks.at_home(references.owners)).squeeze(1)
        jobs = references if ranks.count == 1 else references.take(mine)
        with bank.timed("train"), bank.with_remote_rows(jobs), float32_arithmetic(self.config.tf32):
            work = f"{nth_round(training.round)}: local training"
            with ranks.together(), one_sentence(self.out_of_memory), refuse_global_draws(self.config, self.data, work):
                done = self._train_cohorts(jobs, training, targets, progress)
            parts = (done.losses, done.samples, done.finite, *done.numbers.values())
            spread = [_spread(part, mine, len(references)) for part in parts]
            losses, samples, finite, *numbers = ranks.join(mine, spread)
            return Trained(losses, samples, finite, dict(zip(done.numbers, numbers, strict=True))), targets

    def _train_cohorts(
        self, references: References, training: Training, targets: Targets, progress: Progress | None
    ) -> Trained:
        """Train the jobs into their owners' rows of `targets`; all owners belong to this process."""
        count = len(references)
        losses = torch.full((count,), float("nan"), dtype=torch.float64)
        samples = torch.zeros(count, dtype=torch.long)
        finite = torch.ones(count, dtype=torch.bool)
        numbers = {name: losses.clone() for name in training.changed_numbers}
        cohorts = by_cohort(references.owners, self.cohorts)
        if training.own is not None:
            cohorts = training.own.divide(references.owners, cohorts)
        ended = 0

        set_mode(self.config.loss, True)

        def work(jobs: Tensor) -> Trained:
            with torch.enable_grad():  # An evaluation, where gradients are off, may fine-tune models.
                of_jobs = training.of_client(int(references.owners[jobs[0]]))
                return self.train_cohort(references.take(jobs), of_jobs, targets, pool)

        def done(index: int, result: Trained) -> None:
            nonlocal ended
            ended += 1
            jobs = cohorts[index]
            losses[jobs], samples[jobs], finite[jobs] = result.losses, result.samples, result.finite
            for name, values in result.numbers.items():
                numbers[name][jobs] = values
            if progress is not None:
                progress(ended, len(cohorts))

        with workers(self.threads) as pool, one_blas_thread():
            pool.map(work, cohorts, done, self.between_cohorts)
        return Trained(losses, samples, finite, numbers)

    @abstractmethod
    def train_cohort(self, references: References, training: Training, targets: Targets, pool: Workers) -> Trained:
        """Train the jobs of one cohort in the present thread.

        Args:
            references: the models that the cohort's jobs start from.
            training: purpose, round, phases; see `Training`.
            targets: tensors for the trained rows.
            pool: the threads; call `pool.check` between steps, so that a failure in another thread ends this one.
        """

    @abstractmethod
    def score(self, references: References, split: str) -> Evaluation:
        """Score references whose rows are all in this process.

        Args:
            references: J models.
            split: `train`, `val` or `test` data of each reference's owner.
        """

    @abstractmethod
    def outputs(self, references: References, splits: Sequence[str], pool: Workers) -> list[dict[str, LabelledOutputs]]:
        """Compute models' outputs on their owners' samples, in the present thread; see `predicting.predict`.

        Args:
            references: J models of clients; all rows that they read are in this process.
            splits: names of the splits: `train`, `val`, `test`.
            pool: the threads; call `pool.check` between batches.

        Returns:
            For each model its outputs by split, float64, with the features of `config.features`.
        """

    @property
    def predicted_at_once(self) -> int:
        """Number of models whose outputs are in memory at a time; more only if one client has more."""
        return 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the numbers that an evaluation adds to losses: the task's numbers, and the chosen metrics."""
        return (*self.config.task.numbers, *self.config.metrics)

    def shared_samples(self, references: References, split: str) -> list[Tensor]:
        """Return groups of jobs of one owner that are faster together than with jobs of the same model.

        The default is no group.

        Args:
            references: J models.
            split: `train`, `val` or `test` data of each reference's owner.

        Returns:
            The job indices of each group, long.
        """
        return []

    @property
    def composed_at_once(self) -> int:
        """Number of models combined from several rows that are scored together."""
        return COMPOSED_AT_ONCE

    def plan(self, references: References, split: str) -> EvaluationPlan:
        """Divide the jobs of an evaluation into pieces, and assign each job to a cohort.

        Args:
            references: J models.
            split: `train`, `val` or `test` data of each reference's owner.
        """
        shared = self.shared_samples(references, split)
        return plan_evaluation(references, self.layout, self.cohorts, shared, self.composed_at_once)

    def waves(self, home: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Divide jobs into portions of whole pieces, so that a process holds few rows of other processes at a time.

        Args:
            home: the client in whose cohort each job is done, long [J]; -1 for the global test set.
            pieces: indices of jobs of one cohort each, long.
        """
        piece_bytes = self.composed_at_once * self.layout.width * self.config.dtype.itemsize
        at_once = max(1, REMOTE_BYTES // (piece_bytes * -(-len(self.cohorts) // self.config.processes)))
        return portions(pieces, cohort_of(home, self.cohorts), at_once)

    def samples(self, owner: int, split: str) -> Tensor:
        """Return the indices of a client's samples, int64.

        Args:
            owner: the client; -1: the global test set.
            split: `train`, `val` or `test`.
        """
        if owner < 0:
            assert self.data.global_test is not None
            return self.data.global_test
        indices: Tensor = getattr(self.data, split)[owner]
        return indices


def _spread(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Return a tensor of `count` values with these values at `index` and zeros elsewhere."""
    return values if len(index) == count else values.new_zeros(count).index_copy_(0, index, values)
