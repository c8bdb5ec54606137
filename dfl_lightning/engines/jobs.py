"""What an engine is asked to do with model references, and what it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from dfl_lightning.engines.draws import Draws
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizing.optimizer_memory import OptimizerMemory
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters

Progress = Callable[[int, int], None]
"""Called from the main thread with (cohorts done, cohorts in total)."""


@dataclass(frozen=True)
class Training:
    """How the jobs of one call are trained.

    Args:
        purpose: names the draws, `local` or `finetune` for example; the same purpose and round draw the same batches.
        round: the round, 0-based.
        phases: epochs and columns, one after the other, each with a fresh optimizer, but for `memory`.
        hyperparameters: options of each of the optimizer's groups in this round, in place of their own.
        gradients: update nothing; write the gradient of the mean loss at the reference instead.
        batches: with `gradients`: use only the first `batches` batches of the epoch (None: all data).
        memory: the states of optimizers are those that the bank keeps under these names, and it gets what becomes of
            them; None: they begin anew, and are not kept.
    """

    purpose: str
    round: int
    phases: tuple[Phase, ...]
    hyperparameters: Hyperparameters
    gradients: bool = False
    batches: int | None = None
    memory: OptimizerMemory | None = None

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the clients' numbers that its steps may set."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.objective.numbers))

    @property
    def changed_numbers(self) -> tuple[str, ...]:
        """Names of all of the clients' numbers that change, those of optimizers' states too."""
        return (*self.numbers, *(() if self.memory is None else self.memory.numbers))

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
class Trained:
    """What training leaves, apart from the rows.

    Args:
        losses: float64 [J], mean loss over the samples seen in the last phase, in the order of the jobs; NaN where
            there were none.
        samples: long [J], samples seen in the last phase, counted in every epoch.
        finite: bool [J]; a job that ended in NaN or infinity left the owner's former row in place.
        numbers: the clients' numbers afterwards, float64 [J] by name.
    """

    losses: Tensor
    samples: Tensor
    finite: Tensor
    numbers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Scores of J references on their owners' data.

    Args:
        losses: float64 [J], mean loss per sample; NaN where the owner has no data in the split and nowhere else: a loss
            that is not a number is infinite.
        metrics: float64 [J] by name; the task's numbers are always there.
        weights: float64 [J], of the samples that a mean is over: how many, or the sum of their task's weights.
        means: of the task's statistics, float64 [J] by name, of which `Task.finish` makes the numbers. `weights` and
            `means` are not there for predictions.
    """

    losses: Tensor
    metrics: dict[str, Tensor]
    weights: Tensor | None = None
    means: dict[str, Tensor] = field(default_factory=dict)
