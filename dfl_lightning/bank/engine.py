"""What an engine is: cohorts of clients whose local work is done in one go, behind two calls."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.jobs import Evaluation, References, Trained
from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import ClientData

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank
    from dfl_lightning.objectives import Objective, Phase

Progress = Callable[[int, int], None]
"""Called from the main thread with (cohorts done, cohorts in total)."""


@dataclass(frozen=True)
class Training:
    """How the jobs of one call are trained.

    Args:
        purpose: names the draws, `local` or `finetune` for example; the same purpose and round draw the same batches.
        round: the round, 0-based.
        phases: epochs and columns, one after the other, each with a fresh optimizer.
        lr: learning rate of the round, in place of the optimizer's own.
        gradients: update nothing; write the gradient of the mean loss at the reference instead.
        batches: with `gradients`: use only the first `batches` batches of the epoch (None: all data).
    """

    purpose: str
    round: int
    phases: tuple[Phase, ...]
    lr: float
    gradients: bool = False
    batches: int | None = None


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine needs to know about local work besides rows and data.

    Args:
        network: the plain network that rows are rows of; its own parameters are a scratch pad.
        optimizer: a `torch.optim` class with its arguments bound: parameters -> optimizer.
        loss: (outputs [B, ...], labels [B]) -> mean loss of the batch.
        metrics: torchmetrics by name, computed for each job.
        objective: the local training rule.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        seed: the run's seed.
        dtype: of rows and inputs.
        clip_norm: largest gradient norm of a client; None: no clipping.
        clip_value: largest absolute gradient entry; None: no clipping.
    """

    network: nn.Module
    optimizer: Callable[..., torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: dict[str, Any]
    objective: Objective
    batch_size: int
    seed: int
    dtype: torch.dtype = torch.float32
    clip_norm: float | None = None
    clip_value: float | None = None


class Engine(ABC):
    """Trains and evaluates jobs cohort by cohort.

    Cohorts are a pure function of the number of clients, a job runs in its owner's cohort, and inside a call torch
    works with one thread: bits depend on the config only.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.

    Attributes:
        between_cohorts: called after every cohort from the main thread; raises to abandon the work (Ctrl-C).
    """

    name = "engine"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData) -> None:
        self.config, self.layout, self.data = config, layout, data
        self.cohorts = plan_cohorts(data.num_clients)
        self.between_cohorts: Callable[[], None] = lambda: None

    def train(
        self, bank: Bank, references: References, training: Training, target: Tensor, progress: Progress | None
    ) -> Trained:
        """Train the jobs into their owners' rows of `target` [n, width]."""
        count = len(references)
        losses = torch.full((count,), float("nan"), dtype=torch.float64)
        samples = torch.zeros(count, dtype=torch.long)
        finite = torch.ones(count, dtype=torch.bool)
        cohorts = list(self._by_cohort(references.owners))
        with one_thread(), torch.enable_grad():  # also within an evaluation: fine-tuning
            for done, jobs in enumerate(cohorts, 1):
                result = self.train_cohort(bank, references.take(jobs), training, target)
                losses[jobs], samples[jobs], finite[jobs] = result.losses, result.samples, result.finite
                if progress is not None:
                    progress(done, len(cohorts))
                self.between_cohorts()
        return Trained(losses, samples, finite)

    def evaluate(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Score each reference on its owner's `split` (`train`, `val`, `test`; owner -1: the global test set)."""
        count = len(references)
        losses = torch.full((count,), float("nan"), dtype=torch.float64)
        metrics = {name: losses.clone() for name in ("acc", *self.config.metrics)}
        with one_thread():
            for jobs in self._by_cohort(references.owners):
                result = self.evaluate_cohort(bank, references.take(jobs), split)
                losses[jobs] = result.losses
                for name, values in result.metrics.items():
                    metrics[name][jobs] = values
                self.between_cohorts()
        return Evaluation(losses, metrics)

    @abstractmethod
    def train_cohort(self, bank: Bank, references: References, training: Training, target: Tensor) -> Trained:
        """Train the jobs of one cohort."""

    @abstractmethod
    def evaluate_cohort(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Evaluate the jobs of one cohort."""

    def _by_cohort(self, owners: Tensor) -> Iterator[Tensor]:
        """Indices of the jobs whose owners are in each cohort; the global test set comes last."""
        for cohort in self.cohorts:
            jobs = torch.nonzero((owners >= cohort[0]) & (owners <= cohort[-1])).squeeze(1)
            if len(jobs):
                yield jobs
        rest = torch.nonzero(owners < 0).squeeze(1)
        if len(rest):
            yield rest


def plan_cohorts(num_clients: int) -> list[Tensor]:
    """Contiguous blocks of clients: 8 of them where there are 8 clients, more where a block would exceed 16.

    Short blocks bound the wait for Ctrl-C and the memory of a block; the plan never looks at threads or timings.

    Example:
        >>> [len(c) for c in plan_cohorts(20)]
        [3, 3, 3, 3, 2, 2, 2, 2]
    """
    blocks = min(num_clients, max(8, math.ceil(num_clients / 16)))
    return list(torch.arange(num_clients).tensor_split(blocks))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one intra-op thread: sums then do not depend on the machine's number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
