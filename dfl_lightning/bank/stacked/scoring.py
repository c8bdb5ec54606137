"""Scores of many models on many clients' samples, without gradients.

Jobs that read the same model are done together, so that it is staged once, whatever the number of clients whose data
it is tried on; a few models at a time go through the network side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.bank.engine import EVALUATION_BATCH
from dfl_lightning.bank.jobs import References
from dfl_lightning.bank.stacked.layers import Pass
from dfl_lightning.bank.stacked.staging import Staging
from dfl_lightning.bank.stacked.workshop import Workshop
from dfl_lightning.bank.threads import Workers

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

MODEL_BYTES = 4e6
"""Models side by side: as many as fit in so much memory. More would leave the cache before they are used again."""

ACTIVATION_BYTES = 16e6
"""Samples of each model at a time: as many as make activations of this size."""


@dataclass(frozen=True)
class Subject:
    """One model and everything it is tried on.

    Args:
        jobs: positions of the jobs that read it; the first one's reference is the model.
        samples: for each job, indices of its images.
    """

    jobs: tuple[int, ...]
    samples: tuple[Tensor, ...]

    def __len__(self) -> int:
        return sum(map(len, self.samples))


@dataclass(frozen=True)
class Scores:
    """Means over one job's samples."""

    samples: int
    loss: float
    metrics: dict[str, float]


def subjects_of(jobs: Sequence[int], rows: Sequence[int], samples: Sequence[Tensor]) -> list[Subject]:
    """Group jobs by the model that they read; those with most samples first.

    Args:
        jobs: positions of the jobs.
        rows: equal numbers read the same model; negative ones are alone.
        samples: of each job; jobs without any are left out.
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (job, row) in enumerate(zip(jobs, rows, strict=True)):
        if len(samples[place]):
            groups[(row, job if row < 0 else 0)].append(place)
    found = [Subject(tuple(jobs[p] for p in ps), tuple(samples[p] for p in ps)) for ps in groups.values()]
    return sorted(found, key=len, reverse=True)


class Scorer:
    """Tries out models.

    Args:
        shop: what the jobs of an engine have in common.
        activations: numbers that one sample makes on its way through the network.
    """

    def __init__(self, shop: Workshop, activations: int) -> None:
        self._shop = shop
        itemsize = shop.config.dtype.itemsize
        self.width = int(min(max(1, MODEL_BYTES // (itemsize * shop.layout.width)), 32))
        self.length = int(max(16, ACTIVATION_BYTES // (itemsize * activations * self.width)))

    def score(
        self, bank: Bank, references: References, subjects: Sequence[Subject], pool: Workers
    ) -> dict[int, Scores]:
        """Mean loss, accuracy and metrics by job.

        Args:
            bank: where models are.
            references: of all jobs.
            subjects: the models, those with most samples first.
            pool: asked now and then whether the work is still wanted.
        """
        found: dict[int, Scores] = {}
        for first in range(0, len(subjects), self.width):
            side_by_side = subjects[first : first + self.width]
            jobs = torch.tensor([subject.jobs[0] for subject in side_by_side])
            staging = Staging(self._shop.layout, bank.reader(references.take(jobs)))
            for subject, results in zip(side_by_side, self._pass(staging, side_by_side, pool), strict=True):
                found |= self._reduced(subject, *results)
        return found

    def _pass(
        self, staging: Staging, subjects: Sequence[Subject], pool: Workers
    ) -> list[tuple[Tensor, Tensor, list[Tensor] | None]]:
        """Of each subject: losses [N], whether the answer is right [N], and scores [N, C] if somebody wants them."""
        shop = self._shop
        keep_scores = bool(shop.config.metrics) or not shop.loss.is_cross_entropy
        counts = [len(subject) for subject in subjects]
        indices = [torch.cat(subject.samples) for subject in subjects]
        length = -(-counts[0] // -(-counts[0] // self.length))  # equal parts
        parts: list[list[tuple[Tensor, ...]]] = [[] for _ in subjects]
        for start in range(0, counts[0], length):
            pool.check()
            active = sum(count > start for count in counts)
            sizes = [min(length, count - start) for count in counts[:active]]
            stretch = torch.stack([_stretch(own, start, sizes[0]) for own in indices[:active]])
            inputs, labels = shop.data.batch(stretch, dtype=shop.config.dtype)
            now = Pass({name: tensor[:active] for name, tensor in staging.tensors.items()}, training=False)
            with shop.config.arithmetic(inputs.device):
                scores = shop.network(now, inputs)
            scores = scores.to(shop.config.dtype)
            right = scores.argmax(dim=2) == labels
            losses = right  # in the place of losses, where they are computed from the scores afterwards
            if shop.loss.is_cross_entropy:
                losses = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
            for place, size in enumerate(sizes):
                wanted = (losses, right, scores, labels) if keep_scores else (losses, right)
                parts[place].append(tuple(tensor[place, :size] for tensor in wanted))
        results = []
        for own in parts:
            losses, right, *kept = (torch.cat(pieces) for pieces in zip(*own, strict=True))
            results.append((losses.cpu(), right.cpu(), kept or None))  # a GPU is waited for once a model
        return results

    def _reduced(self, subject: Subject, losses: Tensor, right: Tensor, kept: list[Tensor] | None) -> dict[int, Scores]:
        """Means over each job's samples, and its metrics."""
        sizes = [len(samples) for samples in subject.samples]
        found = {}
        for job, its_losses, its_right in zip(subject.jobs, losses.split(sizes), right.split(sizes), strict=True):
            accuracy = float(its_right.double().mean())
            found[job] = Scores(len(its_right), float(its_losses.double().mean()), {"acc": accuracy})
        if kept is not None:
            for job, scores, labels in zip(subject.jobs, *(tensor.split(sizes) for tensor in kept), strict=True):
                found[job] = self._from_scores(found[job], scores, labels)
        return found

    def _from_scores(self, plain: Scores, scores: Tensor, labels: Tensor) -> Scores:
        """The chosen metrics, and a loss that wants to see whole batches."""
        config = self._shop.config
        metrics = {name: metric.clone().to(scores.device) for name, metric in config.metrics.items()}
        total = 0.0
        for s, y in zip(scores.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
            if not self._shop.loss.is_cross_entropy:
                total += float(config.loss(s, y)) * len(y)
            for metric in metrics.values():
                metric.update(s, y)
        loss = plain.loss if self._shop.loss.is_cross_entropy else total / len(labels)
        computed = {name: float(metric.compute()) for name, metric in metrics.items()}
        return Scores(plain.samples, loss, plain.metrics | computed)


def _stretch(indices: Tensor, start: int, length: int) -> Tensor:
    """[start, start + length) of a model's samples; its own first one again where there are no more."""
    part = indices[start : start + length]
    missing = length - len(part)
    return torch.cat([part, indices[:1].expand(missing)]) if missing else part
