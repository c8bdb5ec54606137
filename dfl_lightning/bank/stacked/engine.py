"""The stacked engine: clients of a cohort side by side in one network."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.cohorts import plan_cohorts
from dfl_lightning.bank.copies import copy_of
from dfl_lightning.bank.dropout_layers import mask_key, replace_dropout_layers
from dfl_lightning.bank.engine import Engine, EngineConfig, Training
from dfl_lightning.bank.jobs import Evaluation, References, Trained
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.products import one_blas_thread
from dfl_lightning.bank.stacked.convolution import choose_unfolded
from dfl_lightning.bank.stacked.cost import Cost
from dfl_lightning.bank.stacked.graphs import CudaGraphs, Recorder, Recordings, obstacle
from dfl_lightning.bank.stacked.job import StackedJob
from dfl_lightning.bank.stacked.loss import StackedLoss
from dfl_lightning.bank.stacked.network import CannotStack, StackedNetwork
from dfl_lightning.bank.stacked.optimizer_trial import try_out
from dfl_lightning.bank.stacked.scoring import Contest, Scorer, Scores, Subject, subjects_of
from dfl_lightning.bank.stacked.staging import row_of
from dfl_lightning.bank.stacked.stopwatch import Stopwatch
from dfl_lightning.bank.stacked.workshop import Workshop
from dfl_lightning.bank.threads import Workers, workers
from dfl_lightning.bank.trial import FEWEST, TRAINING_OPERATIONS, Trial, examples, try_plain
from dfl_lightning.data import ClientData
from dfl_lightning.optimizers import ClientOptimizer
from dfl_lightning.streams import stream_seed

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

TRIAL_OPERATIONS = 2e7
"""Of the forward pass of the samples that clients are tried out on in float64, a twentieth of a second of trials."""

GLOBAL_PIECE = 2000
"""Samples of the global test set that one thread scores at a time."""


Item = Contest | list[Subject]
"""Evaluation that one thread does at a time."""


class StackedEngine(Engine):
    """All clients of a cohort at once.

    Each cohort's rows are copied into a staging area, parameter by parameter, trained there from the first to the last
    step, and copied back. The numbers equal those of the loop engine up to the rounding of sums in another order.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.
        trial: what is known of the network and the loss, if they have been tried already.

    Raises:
        CannotStack: the network, the objective or the optimizer need the loop engine.
    """

    name = "stacked"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, trial: Trial | None = None) -> None:
        trial = trial or try_plain(config, data)
        config = trial.config
        network = copy_of(config.network).to(data.images.device, config.dtype)
        replace_dropout_layers(network)
        for phase in config.objective.phases(layout, 1):
            if not phase.objective.stackable:
                raise CannotStack(f"objective {type(phase.objective).__name__} does not say stackable = True")
        optimizer = ClientOptimizer(config.optimizer, config.network)
        try_out(optimizer, config.network)
        stacked = StackedNetwork(network)
        if trial.couples_evaluation:
            raise CannotStack(
                "its samples meet in evaluation: scores depend on the rest of a batch, or its order or size"
            )
        count = min(max(3, config.batch_size), max(3, int(TRIAL_OPERATIONS // max(1, trial.operations))))
        example, _ = examples(data, count, config.dtype)
        note = stacked.try_out(example, partial(_mask_key, config.seed), trial.couples_training)
        self.cost = Cost.measure(network, stacked, example[:2], config, layout, optimizer.states)
        fused = optimizer.fused_on(data.images.device)
        self._shop = Workshop(config, layout, data, stacked, StackedLoss(config.loss), fused)
        self._scorer = Scorer(self._shop, self.cost.activations)
        super().__init__(config, layout, data)
        self.details |= {"trial": note} if note else {}
        self.recordings: Recordings | None = None
        if data.images.is_cuda:
            self.all_at_once(CudaGraphs() if config.cuda_graphs else None)
            unfolded = choose_unfolded(stacked, Stopwatch(self._shop, len(self.cohorts[0])))
            self.details |= {"unfolded": sorted(unfolded)} if unfolded else {}
        else:
            self.cohorts = plan_cohorts(self.steps, self.cost.narrowest, self.cost.widest, config.cohorts)

    def all_at_once(self, recorder: Recorder | None = None) -> None:
        """Make one cohort of all clients of a process, as for a GPU: one launch serves everybody; caches gain nothing.

        Args:
            recorder: records the cohort's steps, where they can be.
        """
        steps = torch.tensor(self.steps)
        blocks = torch.arange(self.data.num_clients).tensor_split(self.config.processes)
        self.cohorts = [b[torch.argsort(steps[b], descending=True, stable=True)] for b in blocks if len(b)]
        affordable = max(FEWEST, int(TRAINING_OPERATIONS // max(1, self.cost.operations)))
        example, _ = examples(self.data, min(max(3, self.config.batch_size), affordable), self.config.dtype)
        self._shop.network.try_masks(example, partial(_mask_key, self.config.seed))
        if recorder is None:
            return
        reason = obstacle(self._shop, examples(self.data, 2, self.config.dtype)[0])
        self.details["graphs"] = f"not recorded: {reason}" if reason else "recorded"
        if not reason:
            self.recordings = Recordings(self._shop, max(map(len, self.cohorts)), recorder)

    @property
    def cohort_bytes(self) -> int:
        """Models, gradients, optimizer state and activations of a cohort in each thread."""
        largest = sorted((len(cohort) for cohort in self.cohorts), reverse=True)[: self.threads]
        return sum(largest) * self.cost.bytes_per_client

    def train_cohort(
        self, bank: Bank, references: References, training: Training, target: Tensor, pool: Workers
    ) -> Trained:
        """Train the jobs of one cohort, side by side; see `Engine.train`."""
        steps = self.steps
        owners = references.owners.tolist()
        order = torch.tensor(sorted(range(len(owners)), key=lambda job: (-steps[owners[job]], owners[job])))
        recordings = None if training.gradients else self.recordings
        job = StackedJob(self._shop, bank, references.take(order), training, pool, recordings)
        if training.gradients:
            rows = row_of(self.layout, job.mean_gradients())
            target.index_copy_(0, bank.ranks.place[references.owners[order]].to(target.device), rows)
            finite = rows.isfinite().all(1)
        else:
            staging = job.run()
            staging.copy_into(target, bank.ranks.place[references.owners[order]])
            finite = staging.finite()
        back = torch.argsort(order)
        losses = torch.where(job.samples > 0, job.losses / job.samples, float("nan"))
        return Trained(losses.cpu()[back], job.samples.cpu()[back], finite.cpu()[back])

    def evaluate(self, bank: Bank, references: References, split: str) -> Evaluation:
        """Score the jobs, owner by owner or model by model; see `Engine.evaluate`.

        In the latter case a job runs with the cohort of the client whose row it reads (`home`), so that a row is staged
        once.
        """
        items = self._items(references, split)

        def work(item: Item) -> list[Scores]:
            with torch.no_grad():
                if isinstance(item, Contest):
                    return [self._scorer.compete(bank, references, item, pool)]
                return self._scorer.score(bank, references, item, pool)

        with workers(self.threads) as pool, one_blas_thread():
            results = pool.map(work, items, between=self.between_cohorts)
        samples = torch.zeros(len(references), dtype=torch.long)
        losses, *others = torch.zeros(1 + len(self.metrics), len(references), dtype=torch.float64)
        metrics = dict(zip(self.metrics, others, strict=True))
        for scores in chain.from_iterable(results):  # the global test set comes in several pieces
            samples.index_add_(0, scores.jobs, scores.samples)
            losses.index_add_(0, scores.jobs, scores.losses * scores.samples)
            for name, sums in metrics.items():
                sums.index_add_(0, scores.jobs, scores.metrics[name] * scores.samples)
        losses = losses / samples  # NaN where there are none
        losses = losses.masked_fill(losses.isnan() & (samples > 0), math.inf)
        return Evaluation(losses, {name: sums / samples for name, sums in metrics.items()})

    def _items(self, references: References, split: str) -> list[Item]:
        """What one thread does at a time: a contest, the models of a cohort, or a piece of the global test set."""
        read, plan = self.rows_read(references), self.plan(references, split)
        samples = [self.samples(owner, split) for owner in references.owners.tolist()]
        items: list[Item] = [Contest(tuple(jobs.tolist()), samples[int(jobs[0])]) for jobs in plan.contests]
        for jobs in plan.others:
            if int(references.owners[jobs[0]]) < 0:
                items += [[Subject((int(job),), (piece,))] for job in jobs for piece in self._pieces(samples[job])]
            else:
                found = subjects_of(jobs.tolist(), read[jobs].tolist(), [samples[job] for job in jobs])
                items += [found] if found else []
        return sorted(items, key=lambda item: -(len(item) if isinstance(item, Contest) else sum(map(len, item))))

    def contests(self, references: References, split: str) -> list[Tensor]:
        """Jobs of the same client, where that pays; on a GPU it has not been tried."""
        if self.data.images.device.type != "cpu":
            return []
        by_owner: dict[int, list[int]] = defaultdict(list)
        for job, owner in enumerate(references.owners.tolist()):
            by_owner[owner].append(job)
        by_owner.pop(-1, None)  # the global test set is cut into pieces
        found = (self._scorer.contests(jobs, self.samples(owner, split).shape[0]) for owner, jobs in by_owner.items())
        return [jobs for several in found for jobs in several]

    @property
    def composed_at_once(self) -> int:
        """As many as the scorer has side by side, which are many on a GPU."""
        return max(super().composed_at_once, self._scorer.width)

    def _pieces(self, samples: Tensor) -> list[Tensor]:
        """Of the global test set; metrics want to see it whole."""
        if not len(samples):
            return []
        return [samples] if self.config.metrics else list(samples.split(GLOBAL_PIECE))


def _mask_key(seed: int, client: int) -> Tensor:
    """Of the dropout layers' masks while a network is tried out."""
    return mask_key(stream_seed(seed, "try out", client))
