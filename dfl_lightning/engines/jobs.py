"""Requests to an engine (trainings, evaluations of model references) and its results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from dfl_lightning.engines.draws import Draws
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizing.optimizer_memory import OptimizerMemory
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.engines.optimizing.own_training import OwnTraining

Progress = Callable[[int, int], None]
"""Called from the main thread with (cohorts done, cohorts in total)."""


@dataclass(frozen=True)
class Training:
    """Description of one call's local training, the same for all jobs.

    Args:
        purpose: name of the draws, for example `local` or `finetune`; the same purpose and round draw the same batches.
        round: 0-based.
        phases: epochs and columns, one after the other; each has a fresh optimizer, unless `memory` is given.
        hyperparameters: options of each of the optimizer's groups in this round, instead of their own.
        gradients: update nothing; write the gradient of the mean loss at the reference instead.
        batches: with `gradients`: use only the first `batches` batches of the epoch (None: all data).
        memory: names under which the bank keeps the states of optimizers; training reads the states and writes them
            back. None: states begin anew, and are not kept.
        cycles: number of each client's own training, long [m], which names its draws; None: `round` names them.
        own: numbers that differ between clients, instead of those of `phases` and `hyperparameters`; None: all clients
            train alike.
        batch_size: samples in a batch; None: those of the engine's config.
    """

    purpose: str
    round: int
    phases: tuple[Phase, ...]
    hyperparameters: Hyperparameters
    gradients: bool = False
    batches: int | None = None
    memory: OptimizerMemory | None = None
    cycles: Tensor | None = None
    own: OwnTraining | None = None
    batch_size: int | None = None

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the clients' numbers that the objective's steps may set."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.objective.numbers))

    @property
    def changed_numbers(self) -> tuple[str, ...]:
        """Names of all clients' numbers that change: those of `numbers` and those of optimizers' states."""
        return (*self.numbers, *(() if self.memory is None else self.memory.numbers))

    def of_client(self, client: int) -> Training:
        """Return the training of a client, and of all those with the same numbers."""
        if self.own is None:
            return self
        phases = self.own.phases_of(client, self.phases)
        return replace(
            self, phases=phases, hyperparameters=self.own.hyperparameters_of(client, self.hyperparameters), own=None
        )

    def draws(self, seed: int) -> Draws:
        """Return the named draws of this training for the run's seed."""
        return Draws(seed, self.purpose, self.round, self.cycles)


class Targets:
    """Tensors that trained rows are written into, one for each row set, [own, width].

    Args:
        models: the tensor for the models that are exchanged.
        copy_of: name of another row set -> a copy of it; called when the first model of that set is written.

    Attributes:
        rows: the tensors by row set: `models`, and the sets whose models have been trained.
    """

    def __init__(self, models: Tensor, copy_of: Callable[[str], Tensor]) -> None:
        self.rows = {"models": models}
        self._copy_of, self._lock = copy_of, threading.Lock()

    def __getitem__(self, name: str) -> Tensor:
        with self._lock:  # Cohorts end in several threads.
            if name not in self.rows:
                self.rows[name] = self._copy_of(name)
            return self.rows[name]


@dataclass(frozen=True)
class Trained:
    """Results of training, without the rows.

    Args:
        losses: float64 [J], mean loss over the samples seen in the last phase, in the order of the jobs; NaN for a job
            without samples.
        samples: long [J], samples seen in the last phase, counted again in every epoch.
        finite: bool [J]; False for a job that ended in NaN or infinity, whose owner keeps its former row.
        numbers: the clients' numbers after training, float64 [J] by name.
    """

    losses: Tensor
    samples: Tensor
    finite: Tensor
    numbers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Scores of J references on their owners' data.

    Args:
        losses: float64 [J], mean loss per sample; NaN only if the owner has no data in the split: a loss that is NaN
            is reported as infinity.
        metrics: float64 [J] by name; contains the task's numbers.
        weights: float64 [J], number of the samples that a mean is over, or the sum of the task's weights of them.
        means: means of the task's statistics, float64 [J] by name, from which `Task.finish` computes its numbers.
            `weights` and `means` are not given for predictions.
    """

    losses: Tensor
    metrics: dict[str, Tensor]
    weights: Tensor | None = None
    means: dict[str, Tensor] = field(default_factory=dict)
