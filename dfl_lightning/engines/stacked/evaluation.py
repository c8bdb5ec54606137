"""Scores of many models on many clients' samples, without gradients; a few models at a time, side by side.

There are two ways to go about it. Jobs that read the same model are done together, so that it is staged once, whatever
the number of clients whose data it is tried on: `SharedModels`. Or jobs of the same owner are, so that its samples are
prepared once, and a first convolution is a single ordinary one for all models: `SharedSamples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import References
from dfl_lightning.engines.engine import EVALUATION_BATCH
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.gpu.budget import LARGEST_TENSOR
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.utils.thread_pool import Workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

MODEL_BYTES, MODELS = 4e6, 512
"""Models side by side: as many as fit in so much memory. More would leave the cache before they are used again; of tiny
ones a few hundred pay for the overhead of each pass."""

ACTIVATION_BYTES = 32e6
"""Samples of each model at a time: as many as make activations of this size. Few pay for the overhead of each pass; a
single tensor of more than 32 MB is given back to the system, and fetched again, at every pass."""

GPU_MODEL_BYTES, GPU_ACTIVATION_BYTES, GPU_MODELS = 2**30, 2**31, 1024
"""The same on a GPU, which wants few launches of long operations."""

GPU_SHARE = 0.25
"""Of a GPU's free memory: models and activations of an evaluation may take so much each."""


@dataclass(frozen=True)
class SharedModels:
    """Models, and everything that each is tried on.

    Args:
        jobs: positions of the jobs, one model's after the other's, long [j]; a model is its first job's reference.
        sizes: how many samples each job has, long [j].
        counts: how many jobs each model has, long [k].
        samples_of: positions of jobs -> indices of their samples, one job's after the other's, long.
    """

    jobs: Tensor
    sizes: Tensor
    counts: Tensor
    samples_of: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def totals(self) -> Tensor:
        """Samples of each model, long [k]."""
        models = torch.arange(len(self.counts)).repeat_interleave(self.counts)
        return torch.zeros_like(self.counts).index_add_(0, models, self.sizes)

    @property
    def models(self) -> Tensor:
        """Positions of the jobs whose references are the models, long [k]."""
        return self.jobs[self.counts.cumsum(0) - self.counts]

    def split(self, width: int) -> Iterator[SharedModels]:
        """The same, at most so many models at a time."""
        of_models = self.counts.split(width)
        of_jobs = [int(counts.sum()) for counts in of_models]
        for parts in zip(self.jobs.split(of_jobs), self.sizes.split(of_jobs), of_models, strict=True):
            yield SharedModels(*parts, self.samples_of)


@dataclass(frozen=True)
class SharedSamples:
    """Models side by side and the samples that all of them are tried on.

    Args:
        jobs: positions of the jobs, each with a model of its own, long [j].
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
        jobs: their positions, long [j].
        samples: how many each has, long [j].
        weights: the sum of their weights in the task's means, [j].
        losses: float64 [j].
        statistics: of the task, float64 [j] by name.
        metrics: float64 [j] by name.
    """

    jobs: Tensor
    samples: Tensor
    weights: Tensor
    losses: Tensor
    statistics: dict[str, Tensor]
    metrics: dict[str, Tensor]


Look = Callable[[dict[str, Tensor], Tensor, Tensor], list[Tensor]]
"""(k models by tensor, inputs [k, B, ...], labels [k, B]) -> what is asked about each sample, [k, B, ...] each."""


def shared_models(jobs: Tensor, rows: Tensor, sizes: Tensor, samples_of: Callable[[Tensor], Tensor]) -> SharedModels:
    """Group jobs by the model that they read; those with most samples first, of equals the one that is read first.

    Args:
        jobs: positions of the jobs, long [j].
        rows: equal numbers read the same model, long [j]; negative ones are alone.
        sizes: samples of each job, long [j]; jobs without any are left out.
        samples_of: see `SharedModels`.
    """
    jobs, rows, sizes = jobs[sizes > 0], rows[sizes > 0], sizes[sizes > 0]
    places = torch.arange(len(jobs))
    names, group = torch.where(rows < 0, -1 - places, rows).unique(return_inverse=True)
    totals = torch.zeros(len(names), dtype=torch.long).index_add_(0, group, sizes)
    first = torch.full_like(names, len(jobs)).scatter_reduce_(0, group, places, "amin")
    order = first.argsort()
    order = order[totals[order].argsort(descending=True, stable=True)]
    rank = order.argsort()[group]
    by_model = rank.argsort(stable=True)
    return SharedModels(jobs[by_model], sizes[by_model], torch.bincount(rank, minlength=len(names)), samples_of)


def pays(samples: Tensor | int, activations: int, width: int) -> Tensor | bool:
    """Whether to stage a model for every job is little work beside samples that make more numbers than a model has.

    Args:
        samples: how many.
        activations: numbers that one of them makes.
        width: of a model.
    """
    return samples * activations >= width


class Scorer:
    """Tries out models.

    Args:
        context: what the jobs of an engine have in common.
        activations: numbers that one sample makes on its way through the network.
    """

    def __init__(self, context: StackedContext, activations: int) -> None:
        self._context, self._activations = context, activations
        itemsize = context.config.dtype.itemsize
        self._on_cpu = context.data.images.device.type == "cpu"
        model_bytes, most = (MODEL_BYTES, MODELS) if self._on_cpu else (GPU_MODEL_BYTES, GPU_MODELS)
        self.width = int(min(max(1, model_bytes // (itemsize * context.layout.width)), most))
        self._room, self._patches = GPU_ACTIVATION_BYTES, dict[str, int]()

    def keep_within(self, room: int | None, patches: Mapping[str, int]) -> None:
        """Be content with a GPU's memory.

        Args:
            room: bytes that are free beside rows and data; None: not known.
            patches: numbers that a sample has as patches for each convolution that can be unfolded.
        """
        self._patches = dict(patches)
        if room is not None:
            self._room = min(GPU_ACTIVATION_BYTES, int(room * GPU_SHARE))
            models = int(room * GPU_SHARE) // (self._context.config.dtype.itemsize * self._context.layout.width)
            self.width = max(1, min(self.width, models))

    def length(self, models: int) -> int:
        """Samples of each of some models at a time; on a CPU the same however few models there are."""
        itemsize = self._context.config.dtype.itemsize
        if self._on_cpu:
            return int(max(16, ACTIVATION_BYTES // (itemsize * self._activations * self.width)))
        patches = max((self._patches[name] for name in self._context.network.unfolded), default=0)
        fitting = self._room // (itemsize * (self._activations + 2 * patches) * models)
        countable = LARGEST_TENSOR // (max(self._activations, patches) * models)
        return int(max(1, min(fitting, countable)))

    def pays(self, samples: Tensor) -> Tensor:
        """Which owners' jobs may be faster on the same samples; see `shared_samples`.

        Args:
            samples: how many each owner has, long [m].
        """
        return torch.as_tensor(pays(samples, self._activations, self._context.layout.width))

    def shared_samples(self, jobs: Sequence[int], samples: int) -> list[Tensor]:
        """An owner's jobs on the same samples in groups of equal width; none where `SharedModels` are the better way.

        A group stages a model for every job; see `pays`. Some of the groups, as a whole, are cut into the same ones
        again.

        Args:
            jobs: positions of the owner's jobs.
            samples: how many it has.

        Returns:
            The positions in each group, long.
        """
        if not pays(samples, self._activations, self._context.layout.width):
            return []
        parts = torch.tensor(jobs).tensor_split(-(-len(jobs) // self.width))
        return [part for part in parts if len(part) > 1]

    # --- two ways -----------------------------------------------------------------------------------------------------
    def score_together(self, bank: Bank, references: References, group: SharedSamples, pool: Workers) -> Scores:
        """Mean loss, statistics and metrics of the jobs of a group.

        Args:
            bank: holds the models.
            references: of all jobs.
            group: jobs that share samples.
            pool: of threads, checked between batches.
        """
        staging = self._staged(bank, references, group.jobs)
        pieces = []
        for samples in group.samples.split(_equal(len(group.samples), self.length(len(group.jobs)))):
            pool.check()
            inputs, labels = self._context.data.batch(samples.unsqueeze(0), dtype=self._context.config.dtype)
            pieces.append(self._judged(staging.tensors, inputs, labels.expand(len(group.jobs), *labels.shape[1:])))
        found = [torch.cat(several, dim=1) for several in zip(*pieces, strict=True)]
        sizes = torch.full_like(group.jobs, len(group.samples))
        return self._means(group.jobs, sizes, [tensor.flatten(0, 1) for tensor in found])

    def score(self, bank: Bank, references: References, shared: SharedModels, pool: Workers) -> list[Scores]:
        """Mean loss, statistics and metrics of the models' jobs, a few models at a time.

        Args:
            bank: where models are.
            references: of all jobs.
            shared: the models, those with most samples first.
            pool: asked now and then whether the work is still wanted.
        """
        found = []
        for side_by_side in shared.split(self.width):
            staging = self._staged(bank, references, side_by_side.models)
            judged = self._pass(staging, side_by_side, pool, self._judged)
            found.append(self._means(side_by_side.jobs, side_by_side.sizes, judged))
        return found

    def outputs(
        self, bank: Bank, references: References, samples: Sequence[Tensor], pool: Workers
    ) -> list[list[Tensor]]:
        """What each model makes of its own samples: labels [s], scores [s, C], features of the prediction [s, ...].

        Args:
            bank: where models are.
            references: the models.
            samples: indices of samples, long, at least one for each model.
            pool: asked now and then whether the work is still wanted.
        """
        sizes = torch.tensor([len(own) for own in samples])
        jobs = torch.arange(len(samples))
        shared = shared_models(jobs, -1 - jobs, sizes, lambda some: torch.cat([samples[job] for job in some.tolist()]))
        found: list[list[Tensor]] = [[]] * len(samples)
        for side_by_side in shared.split(self.width):
            staging = self._staged(bank, references, side_by_side.models)
            parts = self._pass(staging, side_by_side, pool, self._put_out)
            of_models = zip(*(part.split(side_by_side.sizes.tolist()) for part in parts), strict=True)
            for job, own in zip(side_by_side.jobs.tolist(), of_models, strict=True):
                found[job] = list(own)
        return found

    def _pass(self, staging: Staging, shared: SharedModels, pool: Workers, look: Look) -> list[Tensor]:
        """What `look` returns for all samples, one model after the other."""
        totals = shared.totals[:, None]
        samples, begins = shared.samples_of(shared.jobs), totals.cumsum(0) - totals
        most = int(totals[0])
        length = _equal(most, self.length(len(totals)))
        stretches = []
        for start in range(0, most, length):
            pool.check()
            active = int((totals > start).sum())
            at = torch.arange(start, min(start + length, most))
            at = torch.where(at < totals[:active], at, 0)  # a model's first sample again where it has no more
            inputs, labels = self._context.data.batch(samples[begins[:active] + at], dtype=self._context.config.dtype)
            tensors = {name: tensor[:active] for name, tensor in staging.tensors.items()}
            stretches.append(look(tensors, inputs, labels))
        return [_in_order(parts, totals, length) for parts in zip(*stretches, strict=True)]

    # --- what both have in common -------------------------------------------------------------------------------------
    def _staged(self, bank: Bank, references: References, jobs: Tensor) -> Staging:
        return Staging(self._context.layout, bank.reader(references.take(jobs)))

    def _judged(self, tensors: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Weights and losses of samples, the task's statistics, [k, B] each; scores and labels if they are asked for.

        Args:
            tensors: k models.
            inputs: [k, B, ...], or the same for all models, [1, B, ...].
            labels: [k, B].
        """
        context = self._context
        with context.config.arithmetic(inputs.device):
            scores = context.network(Pass(tensors, training=False), inputs)
        scores = scores.to(context.config.dtype)
        task = context.config.task
        known = context.loss.sample_by_sample(task)
        statistics = task.statistics(scores, labels)
        found = [statistics[name] for name in task.names]
        # in the place of losses, where they are computed from the scores afterwards, anything
        losses = found[0] if known is None else known.losses(scores, labels)
        weights = task.weights(labels)
        weighed = [] if weights is None else [weights]
        wants_scores = bool(context.config.metrics) or known is None
        return [losses, *found, *weighed, *([scores, labels] if wants_scores else [])]

    def _put_out(self, tensors: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Labels [k, B], scores [k, B, C] and the features that the prediction wants, [k, B, ...] each.

        Args:
            tensors: k models.
            inputs: [k, B, ...].
            labels: [k, B].
        """
        config, now = self._context.config, Pass(tensors, training=False, keeps_features=True)
        with config.arithmetic(inputs.device):
            scores = self._context.network(now, inputs)
        return [labels, scores.double(), *(now.features[name].double() for name in config.predicted_features)]

    def _means(self, jobs: Tensor, counts: Tensor, judged: Sequence[Tensor]) -> Scores:
        """Means over each job's samples, and its metrics.

        Args:
            jobs: their positions, long [j].
            counts: samples of each, long [j].
            judged: what `_judged` returns for these samples, one job after the other.
        """
        config, loss = self._context.config, self._context.loss
        known = loss.sample_by_sample(config.task) is not None
        kept = judged[-2:] if config.metrics or not known else []
        numbers = torch.stack([column.double() for column in judged[: len(judged) - len(kept)]], dim=1)
        numbers, names = numbers.cpu(), config.task.names  # a GPU is waited for once
        weights, of_samples = counts, None
        if numbers.shape[1] == 1 + len(names):
            means, *statistics = torch.segment_reduce(numbers, "mean", lengths=counts).unbind(1)
        else:
            of_samples = judged[1 + len(names)]
            *sums, weights = torch.segment_reduce(numbers, "sum", lengths=counts).unbind(1)
            means, *statistics = (total / weights for total in sums)
        found = dict(zip(names, statistics, strict=True))
        if not kept:
            return Scores(jobs, counts, weights, means, found, {})
        sizes = counts.tolist()
        several = list(zip(*(tensor.split(sizes) for tensor in kept), strict=True))
        metrics: Sequence[Tensor] = ()
        if config.metrics:
            chosen = torch.stack([number for own in several for number in self._from_scores(*own)])
            metrics = chosen.cpu().view(len(jobs), -1).unbind(1)  # one wait, too
        if not known:
            by_job = None if of_samples is None else of_samples.split(sizes)
            means = loss.means(kept[0].split(sizes), kept[1].split(sizes), EVALUATION_BATCH, by_job).cpu()
        return Scores(jobs, counts, weights, means, found, dict(zip(config.metrics, metrics, strict=True)))

    def _from_scores(self, scores: Tensor, labels: Tensor) -> list[Tensor]:
        """One job's chosen metrics; float64 [] each."""
        config = self._context.config
        metrics = {name: metric.clone().to(scores.device) for name, metric in config.metrics.items()}
        for s, y in zip(scores.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
            for metric in metrics.values():
                metric.update(*config.task.for_metrics(s, y))
        computed = (torch.as_tensor(metric.compute(), dtype=torch.float64) for metric in metrics.values())
        return [value.reshape(()).to(scores.device) for value in computed]


def _in_order(parts: Sequence[Tensor], totals: Tensor, length: int) -> Tensor:
    """What belongs to samples, one model's after the other's.

    Args:
        parts: of each stretch of samples, [models that have so many, length, ...].
        totals: samples of each model, long [k, 1].
        length: of a stretch; the last one may be shorter.
    """
    if len(parts) == 1:
        inside = torch.arange(parts[0].shape[1]) < totals
        index = torch.nonzero(inside.flatten()).squeeze(1).to(parts[0].device)
        return parts[0].flatten(0, 1).index_select(0, index)
    of_model = [
        part[model, : max(0, int(total) - place * length)]
        for model, total in enumerate(totals)
        for place, part in enumerate(parts)
        if model < len(part)
    ]
    return torch.cat(of_model)


def _equal(count: int, longest: int) -> int:
    """The length of equal parts of `count` samples, none longer than `longest`."""
    return -(-count // -(-count // longest))
