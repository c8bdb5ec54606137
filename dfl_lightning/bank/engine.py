"""What an engine is: cohorts of clients whose local work is done in one go, behind two calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.batches import Draws, batches_of
from dfl_lightning.bank.cohorts import plan_cohorts
from dfl_lightning.bank.jobs import Evaluation, References, Trained
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.products import one_blas_thread
from dfl_lightning.bank.threads import Workers, workers
from dfl_lightning.data import ClientData
from dfl_lightning.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank
    from dfl_lightning.objectives import Objective, Phase

EVALUATION_BATCH = 1000
"""Samples in one call of a loss or a metric in an evaluation."""

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

    def draws(self, seed: int) -> Draws:
        """The named draws of this training."""
        return Draws(seed, self.purpose, self.round)


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
        reduced: layers compute in this type where torch's autocast finds it good enough; rows stay in `dtype`.
        cuda_graphs: record the steps of a GPU and replay them.
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
    reduced: torch.dtype | None = None
    cuda_graphs: bool = False

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
        self.config, self.layout, self.data = config, layout, data
        self.cohorts = plan_cohorts(self.steps())
        self.reason = ""
        self.details: dict[str, Any] = {}
        self.between_cohorts: Callable[[], None] = lambda: None

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

    def train(
        self, bank: Bank, references: References, training: Training, target: Tensor, progress: Progress | None
    ) -> Trained:
        """Train the jobs into their owners' rows of `target` [n, width]."""
        count = len(references)
        losses = torch.full((count,), float("nan"), dtype=torch.float64)
        samples = torch.zeros(count, dtype=torch.long)
        finite = torch.ones(count, dtype=torch.bool)
        cohorts = self.by_cohort(references.owners)
        ended = 0

        def work(jobs: Tensor) -> Trained:
            with torch.enable_grad():  # also within an evaluation: fine-tuning
                return self.train_cohort(bank, references.take(jobs), training, target, pool)

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
        self, bank: Bank, references: References, training: Training, target: Tensor, pool: Workers
    ) -> Trained:
        """Train the jobs of one cohort in the present thread; `pool.check` now and then."""

    def by_cohort(self, owners: Tensor) -> list[Tensor]:
        """Indices of the jobs of each cohort, where there are any; the global test set (owner -1) comes last."""
        place = torch.full((self.data.num_clients + 1,), len(self.cohorts))
        for index, cohort in enumerate(self.cohorts):
            place[cohort] = index
        places = place[owners]  # -1 is the last entry
        order = torch.argsort(places, stable=True)
        counts = torch.bincount(places, minlength=len(self.cohorts) + 1)
        return [jobs for jobs in order.split(counts.tolist()) if len(jobs)]

    def samples(self, owner: int, split: str) -> Tensor:
        """Indices of the owner's images, int64; owner -1: the global test set."""
        if owner < 0:
            assert self.data.global_test is not None
            return self.data.global_test
        found: Tensor = getattr(self.data, split)[owner]
        return found


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


def refuse_single_samples(network: nn.Module, config: EngineConfig, data: ClientData) -> None:
    """BatchNorm cannot train on one sample: better said now than by a traceback in the middle of a round.

    Raises:
        UserError: a client has a batch of one sample and the network cannot train on it.
    """
    size = config.batch_size
    single = [owner for owner, samples in enumerate(data.train) if len(samples) % size == 1 or size == 1]
    if not single:
        return
    lonely = [owner for owner in single if len(data.train[owner]) == 1]  # whom no batch size helps
    owner = (lonely or single)[0]
    x, _ = data.batch(data.train[owner][:1], dtype=config.dtype)
    try:
        with torch.no_grad():
            network.train()(x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        samples = len(data.train[owner])
        remedy = "give it more samples or use another normalisation" if lonely else "choose another batch size"
        raise UserError(
            f"client {owner} has {samples} training sample{'s' * (samples > 1)}, so that with "
            f"model.batch_size={size} a batch holds a single one, which the network's BatchNorm cannot be trained on; "
            f"{remedy}"
        ) from error
