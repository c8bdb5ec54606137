"""Evaluation of many models on many clients' samples, without gradients, several models at once.

There are two ways. `SharedModels`: jobs that read the same model are done together, so that the model is staged once
for all clients on whose data it is evaluated. `SharedSamples`: jobs of the same owner are done together, so that its
samples are prepared once, and a first convolution is a single ordinary one for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import References
from dfl_lightning.engines.engine import EVALUATION_BATCH
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.gpu.budget import LARGEST_TENSOR
from dfl_lightning.engines.stacked.gpu.evaluation_ways import MeasuredWays, Way
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.metrics import ClientMetric, metrics_of
from dfl_lightning.utils.thread_pool import Workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

MODEL_BYTES, MODELS = 4e6, 512
"""Bytes, and number, of models that are computed at once at most. More would leave the cache before they are used
again; a few hundred tiny models are enough to outweigh the overhead of each pass."""

ACTIVATION_BYTES = 32e6
"""Approximate bytes of activations in a pass, which determine the number of samples. Fewer samples do not outweigh the
overhead of a pass; a tensor of more than 32 MB would be returned to the system, and allocated again, in every pass."""

GPU_MODEL_BYTES, GPU_ACTIVATION_BYTES, GPU_MODELS = 2**30, 2**31, 1024
"""The same limits on a GPU, which is fast with few launches of long operations."""

GPU_SHARE = 0.25
"""Largest share of a GPU's free memory for models, and for activations, of an evaluation."""


@dataclass(frozen=True)
class SharedModels:
    """Models with all jobs that read them.

    Args:
        jobs: indices of the jobs, one model's after the other's, long [j]; a model is its first job's reference.
        sizes: number of samples of each job, long [j].
        counts: number of jobs of each model, long [k].
        samples_of: indices of jobs -> indices of their samples, one job's after the other's, long.
    """

    jobs: Tensor
    sizes: Tensor
    counts: Tensor
    samples_of: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def totals(self) -> Tensor:
        """Number of samples of each model, long [k]."""
        models = torch.arange(len(self.counts)).repeat_interleave(self.counts)
        return torch.zeros_like(self.counts).index_add_(0, models, self.sizes)

    @property
    def models(self) -> Tensor:
        """Indices of the jobs whose references are the models, long [k]."""
        return self.jobs[self.counts.cumsum(0) - self.counts]

    def split(self, width: int) -> Iterator[SharedModels]:
        """Cut into parts of at most `width` models."""
        of_models = self.counts.split(width)
        of_jobs = [int(counts.sum()) for counts in of_models]
        for parts in zip(self.jobs.split(of_jobs), self.sizes.split(of_jobs), of_models, strict=True):
            yield SharedModels(*parts, self.samples_of)


@dataclass(frozen=True)
class SharedSamples:
    """Models that are evaluated on the same samples.

    Args:
        jobs: indices of the jobs, each with a model of its own, long [j].
        samples: indices of the samples, the same for all jobs.
    """

    jobs: Tensor
    samples: Tensor

    def __len__(self) -> int:
        return len(self.jobs) * len(self.samples)


@dataclass(frozen=True)
class Scores:
    """Means over the samples of each of j jobs.

    Args:
        jobs: indices of the jobs, long [j].
        samples: number of samples of each job, long [j].
        weights: sum of the samples' weights in the task's means, [j].
        losses: float64 [j].
        statistics: means of the task's statistics, float64 [j] by name.
        metrics: float64 [j] by name.
        failures: errors of metrics, in words, by metric and job.
    """

    jobs: Tensor
    samples: Tensor
    weights: Tensor
    losses: Tensor
    statistics: dict[str, Tensor]
    metrics: dict[str, Tensor]
    failures: dict[tuple[str, int], str] = field(default_factory=dict)


Look = Callable[[Pass, Tensor, Tensor], list[Tensor]]
"""(pass of k models, inputs [k, B, ...], labels [k, B]) -> results for each sample, [k, B, ...] each."""


def shared_models(jobs: Tensor, rows: Tensor, sizes: Tensor, samples_of: Callable[[Tensor], Tensor]) -> SharedModels:
    """Group jobs by the model that they read, models with the most samples first, equal ones in the order of jobs.

    Args:
        jobs: indices of the jobs, long [j].
        rows: number of the model that each job reads, long [j]; a negative number is a model of its own.
        sizes: number of samples of each job, long [j]; jobs without samples are left out.
        samples_of: see `SharedModels`.
    """
    jobs, rows, sizes = jobs[sizes > 0], rows[sizes > 0], sizes[sizes > 0]
    positions = torch.arange(len(jobs))
    names, group = torch.where(rows < 0, -1 - positions, rows).unique(return_inverse=True)
    totals = torch.zeros(len(names), dtype=torch.long).index_add_(0, group, sizes)
    first = torch.full_like(names, len(jobs)).scatter_reduce_(0, group, positions, "amin")
    order = first.argsort()
    order = order[totals[order].argsort(descending=True, stable=True)]
    rank = order.argsort()[group]
    by_model = rank.argsort(stable=True)
    return SharedModels(jobs[by_model], sizes[by_model], torch.bincount(rank, minlength=len(names)), samples_of)


def pays(samples: Tensor | int, activations: int, width: int) -> Tensor | bool:
    """Return True if the samples' activations outnumber a model, so that staging a model for every job costs little.

    Args:
        samples: number of samples, or an array of such numbers.
        activations: numbers that one sample's forward pass writes.
        width: numbers of a model.
    """
    return samples * activations >= width


class Scorer:
    """Evaluation of models on samples.

    Args:
        context: the parts that all jobs of the engine share.
        activations: numbers that one sample's forward pass writes.

    Attributes:
        width: largest number of models that are computed at once.
        measured: measured times of evaluations on a GPU; None: the models are evaluated `width` at a time.
    """

    measured: MeasuredWays | None = None

    def __init__(self, context: StackedContext, activations: int) -> None:
        self._context, self._activations = context, activations
        itemsize = context.config.dtype.itemsize
        self._on_cpu = context.data.images.device.type == "cpu"
        model_bytes, most = (MODEL_BYTES, MODELS) if self._on_cpu else (GPU_MODEL_BYTES, GPU_MODELS)
        self.width = int(min(max(1, model_bytes // (itemsize * context.layout.width)), most))
        self._room, self._patches = GPU_ACTIVATION_BYTES, dict[str, int]()

    def keep_within(self, room: int | None, patches: Mapping[str, int]) -> None:
        """Limit models and activations to the memory of a GPU.

        Args:
            room: bytes that rows and data leave free; None: not known.
            patches: entries of a sample's patches, for each convolution that can be unfolded.
        """
        self._patches = dict(patches)
        if room is not None:
            self._room = min(GPU_ACTIVATION_BYTES, int(room * GPU_SHARE))
            models = int(room * GPU_SHARE) // (self._context.config.dtype.itemsize * self._context.layout.width)
            self.width = max(1, min(self.width, models))

    def length(self, models: int, unfolded: frozenset[str] | None = None) -> int:
        """Return the number of samples of each model in a pass; on a CPU it does not depend on the number of models.

        Args:
            models: number of models in the pass.
            unfolded: convolutions that are computed by patches; None: those of training.
        """
        itemsize = self._context.config.dtype.itemsize
        if self._on_cpu:
            return int(max(16, ACTIVATION_BYTES // (itemsize * self._activations * self.width)))
        patches = max((self._patches[name] for name in self._unfolded(unfolded)), default=0)
        fitting = self._room // (itemsize * (self._activations + 2 * patches) * models)
        countable = LARGEST_TENSOR // (max(self._activations, patches) * models)
        return int(max(1, min(fitting, countable)))

    def _unfolded(self, names: frozenset[str] | None) -> frozenset[str]:
        return self._context.network.unfolded if names is None else names

    def length_of(self, way: Way) -> int:
        """Return the number of samples of each model in a pass."""
        return self.length(way.width, way.unfolded)

    def way(self, totals: Tensor) -> Way:
        """Choose how to evaluate models.

        Args:
            totals: number of samples of each model, long [k], descending.
        """
        if self.measured is None or not len(totals):
            return Way(self.width, self._context.network.unfolded)
        return self.measured.best(totals, self.length_of)

    def pays(self, samples: Tensor) -> Tensor:
        """Return for each owner whether its jobs may be faster together, bool [m]; see `shared_samples`.

        Args:
            samples: number of each owner's samples, long [m].
        """
        return torch.as_tensor(pays(samples, self._activations, self._context.layout.width))

    def shared_samples(self, jobs: Sequence[int], samples: int) -> list[Tensor]:
        """Divide an owner's jobs into groups of about equal width; return no group if `SharedModels` are faster.

        A group stages a model for every job; see `pays`. The jobs of some of the groups would be divided into the same
        groups again.

        Args:
            jobs: indices of the owner's jobs.
            samples: number of the owner's samples.

        Returns:
            The indices in each group, long.
        """
        if not pays(samples, self._activations, self._context.layout.width):
            return []
        parts = torch.tensor(jobs).tensor_split(-(-len(jobs) // self.width))
        return [part for part in parts if len(part) > 1]

    # --- two ways -----------------------------------------------------------------------------------------------------
    def score_together(self, bank: Bank, references: References, group: SharedSamples, pool: Workers) -> Scores:
        """Compute mean loss, statistics and metrics of the jobs of a group.

        Args:
            bank: the bank with the models.
            references: references of all jobs.
            group: jobs that share samples.
            pool: the threads; `pool.check` is called between batches.
        """
        staging = self._staged(bank, references, group.jobs)
        pieces = []
        for samples in group.samples.split(_equal(len(group.samples), self.length(len(group.jobs)))):
            pool.check()
            inputs, labels = self._context.data.batch(samples.unsqueeze(0), dtype=self._context.config.dtype)
            now = Pass(staging.tensors, training=False)
            pieces.append(self._judged(now, inputs, labels.expand(len(group.jobs), *labels.shape[1:])))
        judged = [torch.cat(several, dim=1) for several in zip(*pieces, strict=True)]
        sizes = torch.full_like(group.jobs, len(group.samples))
        return self._means(group.jobs, sizes, [tensor.flatten(0, 1) for tensor in judged])

    def score(self, bank: Bank, references: References, shared: SharedModels, pool: Workers) -> list[Scores]:
        """Compute mean loss, statistics and metrics of the models' jobs, at most `width` models at a time.

        Args:
            bank: the bank with the models.
            references: references of all jobs.
            shared: the models with their jobs, those with the most samples first.
            pool: the threads; `pool.check` is called between batches.
        """
        scores, way = [], self.way(shared.totals)
        for part in shared.split(way.width):
            staging = self._staged(bank, references, part.models)
            judged = self._pass(staging, part, way, pool, self._judged)
            scores.append(self._means(part.jobs, part.sizes, judged))
        return scores

    def outputs(
        self, bank: Bank, references: References, samples: Sequence[Tensor], pool: Workers
    ) -> list[list[Tensor]]:
        """Compute each model's outputs on its samples: labels [s], scores [s, C], features of the prediction [s, ...].

        Args:
            bank: the bank with the models.
            references: the models.
            samples: indices of each model's samples, long, at least one for each.
            pool: the threads; `pool.check` is called between batches.
        """
        sizes = torch.tensor([len(part) for part in samples])
        jobs = torch.arange(len(samples))
        shared = shared_models(jobs, -1 - jobs, sizes, lambda some: torch.cat([samples[job] for job in some.tolist()]))
        by_job: list[list[Tensor]] = [[]] * len(samples)
        way = self.way(shared.totals)
        for some in shared.split(way.width):
            staging = self._staged(bank, references, some.models)
            results = self._pass(staging, some, way, pool, self._put_out)
            of_models = zip(*(result.split(some.sizes.tolist()) for result in results), strict=True)
            for job, of_model in zip(some.jobs.tolist(), of_models, strict=True):
                by_job[job] = list(of_model)
        return by_job

    def _pass(self, staging: Staging, shared: SharedModels, way: Way, pool: Workers, look: Look) -> list[Tensor]:
        """Run all samples through the models, and return the results of `look`, one model's after the other's."""
        totals = shared.totals[:, None]
        samples, begins = shared.samples_of(shared.jobs), totals.cumsum(0) - totals
        most = int(totals[0])
        length = _equal(most, self.length(len(totals), way.unfolded))
        stretches = []
        for start in range(0, most, length):
            pool.check()
            active = int((totals > start).sum())
            at = torch.arange(start, min(start + length, most))
            at = torch.where(at < totals[:active], at, 0)  # Padding repeats a model's first sample.
            inputs, labels = self._context.data.batch(samples[begins[:active] + at], dtype=self._context.config.dtype)
            tensors = {name: tensor[:active] for name, tensor in staging.tensors.items()}
            stretches.append(look(Pass(tensors, training=False, unfolded=way.unfolded), inputs, labels))
        return [_in_order(parts, totals, length) for parts in zip(*stretches, strict=True)]

    # --- parts of both ------------------------------------------------------------------------------------------------
    def _staged(self, bank: Bank, references: References, jobs: Tensor) -> Staging:
        return Staging(self._context.layout, bank.reader(references.take(jobs)))

    def _judged(self, now: Pass, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Compute losses, the task's statistics and weights of samples, [k, B] each; add scores and labels if needed.

        Args:
            now: the pass of k models.
            inputs: [k, B, ...], or the same for all models, [1, B, ...].
            labels: [k, B].
        """
        context = self._context
        with context.config.arithmetic(inputs.device):
            scores = context.network(now, inputs)
        scores = scores.to(context.config.dtype)
        task = context.config.task
        by_sample = context.loss.sample_by_sample(task)
        statistics = task.statistics(scores, labels)
        columns = [statistics[name] for name in task.names]
        # If losses are computed from the scores later, any tensor of their shape stands here.
        losses = columns[0] if by_sample is None else by_sample.losses(scores, labels)
        weights = task.weights(labels)
        weighed = [] if weights is None else [weights]
        wants_scores = bool(context.config.metrics) or by_sample is None
        return [losses, *columns, *weighed, *([scores, labels] if wants_scores else [])]

    def _put_out(self, now: Pass, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Compute scores [k, B, C] and the prediction's features, [k, B, ...] each; return labels, scores, features.

        Args:
            now: the pass of k models.
            inputs: [k, B, ...].
            labels: [k, B].
        """
        config, now.keeps_features = self._context.config, True
        with config.arithmetic(inputs.device):
            scores = self._context.network(now, inputs)
        return [labels, scores.double(), *(now.features[name].double() for name in config.predicted_features)]

    def _means(self, jobs: Tensor, counts: Tensor, judged: Sequence[Tensor]) -> Scores:
        """Compute means over each job's samples, and its metrics.

        Args:
            jobs: indices of the jobs, long [j].
            counts: number of samples of each job, long [j].
            judged: results of `_judged` for these samples, one job after the other.
        """
        config, loss = self._context.config, self._context.loss
        has_losses = loss.sample_by_sample(config.task) is not None
        kept = judged[-2:] if config.metrics or not has_losses else []
        numbers = torch.stack([column.double() for column in judged[: len(judged) - len(kept)]], dim=1)
        numbers, names = numbers.cpu(), config.task.names  # The host waits for a GPU only once, here.
        weights, of_samples = counts, None
        if numbers.shape[1] == 1 + len(names):
            means, *statistics = torch.segment_reduce(numbers, "mean", lengths=counts).unbind(1)
        else:
            of_samples = judged[1 + len(names)]
            *sums, weights = torch.segment_reduce(numbers, "sum", lengths=counts).unbind(1)
            means, *statistics = (total / weights for total in sums)
        by_name = dict(zip(names, statistics, strict=True))
        if not kept:
            return Scores(jobs, counts, weights, means, by_name, {})
        sizes = counts.tolist()
        several = list(zip(*(tensor.split(sizes) for tensor in kept), strict=True))
        metrics: Sequence[Tensor] = ()
        failures: dict[tuple[str, int], str] = {}
        if config.metrics:
            numbers_of = []
            for job, of_job in zip(jobs.tolist(), several, strict=True):
                of_metrics = self._from_scores(*of_job)
                numbers_of += [metric.compute().to(kept[0].device) for metric in of_metrics]
                failed = zip(config.metrics, of_metrics, strict=True)
                failures |= {(name, job): metric.failure for name, metric in failed if metric.error is not None}
            chosen = torch.stack(numbers_of)
            metrics = chosen.cpu().view(len(jobs), -1).unbind(1)  # The host waits once for all metrics, too.
        if not has_losses:
            by_job = None if of_samples is None else of_samples.split(sizes)
            means = loss.means(kept[0].split(sizes), kept[1].split(sizes), EVALUATION_BATCH, by_job).cpu()
        by_metric = dict(zip(config.metrics, metrics, strict=True))
        return Scores(jobs, counts, weights, means, by_name, by_metric, failures)

    def _from_scores(self, scores: Tensor, labels: Tensor) -> list[ClientMetric]:
        """Give the samples of one job to the chosen metrics."""
        config = self._context.config
        metrics = metrics_of(config.metrics, scores.device)
        for s, y in zip(scores.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
            for metric in metrics:
                metric.update(config.task, s, y)
        return metrics


def _in_order(parts: Sequence[Tensor], totals: Tensor, length: int) -> Tensor:
    """Remove padding, and put the results of stretches in order, one model's samples after the other's.

    Args:
        parts: results of each stretch of samples, [models with so many samples, length, ...].
        totals: number of samples of each model, long [k, 1].
        length: number of samples of a stretch; the last one may be shorter.
    """
    if len(parts) == 1:
        inside = torch.arange(parts[0].shape[1]) < totals
        index = torch.nonzero(inside.flatten()).squeeze(1).to(parts[0].device)
        return parts[0].flatten(0, 1).index_select(0, index)
    of_model = [
        part[model, : max(0, int(total) - stretch * length)]
        for model, total in enumerate(totals)
        for stretch, part in enumerate(parts)
        if model < len(part)
    ]
    return torch.cat(of_model)


def _equal(count: int, longest: int) -> int:
    """Return the length of about equal parts of `count` samples that are not longer than `longest`."""
    return -(-count // -(-count // longest))
