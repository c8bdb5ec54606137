"""Loop over clients: one network, one optimizer, one client after the other.

The loop engine does what a paper's pseudo-code says, with ordinary modules and `torch.optim`. It is the reference for
tests of any faster engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.engines.cohorts import by_cohort
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.jobs import Evaluation, Targets, Trained, Training
from dfl_lightning.engines.loop.loop_training import LoopJob, LoopWork, orders_ahead
from dfl_lightning.engines.loop.scratch import Scratch
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.placing import set_mode
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs
from dfl_lightning.engines.trials.trial import Trial, try_plain
from dfl_lightning.utils.thread_pool import Workers, workers


class LoopEngine(Engine):
    """Engine that trains clients one by one, in scratch networks whose parameters are views of a client's row.

    Each thread uses a scratch network of its own.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.
        trial: result of the trial of the network and the loss; None: the engine tries them.
    """

    name = "loop"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, trial: Trial | None = None) -> None:
        trial = trial or try_plain(config, data)
        super().__init__(trial.config, layout, data)
        self.optimizer = ClientOptimizer(config.optimizer, config.network).on(data.images.device)
        self._whole, self._norms = trial.couples_evaluation, trial.norms
        if self._whole:
            self.details["evaluation"] = "all samples of a client in one batch, because samples interact in the network"
        self._scratches: list[Scratch] = []

    @property
    def cohort_bytes(self) -> int:
        """Bytes of one client's row, start and gradients; activations are not counted."""
        return 3 * self.layout.width * self.config.dtype.itemsize

    def train_cohort(self, references: References, training: Training, targets: Targets, pool: Workers) -> Trained:
        """Train the jobs of one cohort one after the other; see `Engine.train_cohort`."""
        bank = self.bank
        losses, samples, finite = [], [], []
        numbers: dict[str, list[Tensor]] = {name: [] for name in training.changed_numbers}
        orders = orders_ahead(self.config, self.data, references.owners.tolist(), training)
        work = LoopWork(self.config, self.layout, self.data, self.optimizer, self._scratch, self._norms, orders)
        for index, owner in enumerate(references.owners.tolist()):
            pool.check()
            row = bank.materialise(references.take(torch.tensor([index])))[0]
            job = LoopJob(work, bank, row, owner, training)
            if training.gradients:
                row = job.mean_gradient()
            else:
                job.run()
            own_row = bank.ranks.place[owner]
            rows = {"models": row, **{name: model.row for name, model in job.others.items()}}
            changed = {name: bank.number(name)[owner].to(row.device) for name in training.changed_numbers} | job.numbers
            for memory in job.memories.values():
                rows |= memory.rows
                changed |= memory.as_tensors()
            for name, trained in rows.items():
                targets[name][own_row] = trained
            ended = [*rows.values(), *changed.values()]
            are_finite = [torch.isfinite(trained).all() for trained in ended]
            finite.append(are_finite[0] if len(are_finite) == 1 else torch.stack(are_finite).all())
            for name, value in changed.items():
                numbers[name].append(value)
            mean = job.loss_sum / job.weight if job.samples else float("nan")
            losses.append(torch.as_tensor(mean, dtype=torch.float64, device=row.device))
            samples.append(job.samples)
        stacked = {name: torch.stack([v.double() for v in values]).cpu() for name, values in numbers.items()}
        return Trained(torch.stack(losses).cpu(), torch.tensor(samples), torch.stack(finite).cpu(), stacked)

    def score(self, references: References, split: str) -> Evaluation:
        """Score the jobs one after the other; see `Engine.score`."""
        bank = self.bank
        cohorts = by_cohort(references.owners, self.cohorts)
        set_mode(self.config.loss, False)

        def work(jobs: Tensor) -> list[Tensor]:
            scores = []
            with torch.no_grad(), self._scratch() as scratch:
                for job in jobs.tolist():
                    pool.check()
                    row = bank.materialise(references.take(torch.tensor([job])))[0]
                    owner = int(references.owners[job])
                    scores.append(scratch.scores(row, self.samples(owner, split)))
                    self.failures.add(owner, scratch.metrics)
            return scores

        with workers(self.threads) as pool, one_blas_thread():
            results = pool.map(work, cohorts, between=self.between_cohorts)
        task = self.config.task
        count = 1 + len(self.metrics) + 1 + len(task.names)
        table = torch.full((count, len(references)), float("nan"), dtype=torch.float64)
        if cohorts:
            of_jobs = torch.stack([scores for several in results for scores in several])
            table[:, torch.cat(cohorts)] = of_jobs.cpu().T  # The host waits for a GPU only once, here.
        losses, *others = table
        metrics, (weights, *means) = others[: len(self.metrics)], others[len(self.metrics) :]
        by_name = dict(zip(self.metrics, metrics, strict=True))
        return Evaluation(losses, by_name, weights.nan_to_num(0.0), dict(zip(task.names, means, strict=True)))

    def outputs(self, references: References, splits: Sequence[str], pool: Workers) -> list[dict[str, LabelledOutputs]]:
        """Compute each model's outputs on its owner's samples; see `Engine.outputs`."""
        of_models = []
        with self._scratch() as scratch:
            for job, owner in enumerate(references.owners.tolist()):
                row = self.bank.materialise(references.take(torch.tensor([job])))[0]
                by_split = {}
                for split in splits:
                    pool.check()
                    by_split[split] = scratch.outputs(row, self.samples(owner, split))
                of_models.append(by_split)
        return of_models

    @contextmanager
    def _scratch(self) -> Iterator[Scratch]:
        """Offer a scratch network that no other thread uses; make one if none is free."""
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = Scratch(self.config, self.layout, self.data, self._whole)
        try:
            yield scratch
        finally:
            self._scratches.append(scratch)
