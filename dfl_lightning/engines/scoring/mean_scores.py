"""Mean loss, the task's numbers and metrics of one model, computed from its outputs batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.metrics import ClientMetric
from dfl_lightning.tasks import Task


def no_scores(config: EngineConfig, device: torch.device, metrics: Iterable[ClientMetric]) -> Tensor:
    """Return the scores of a model without samples: NaN, float64, as many as `mean_scores` returns.

    Args:
        config: the engine's config.
        device: device of the scores.
        metrics: metrics that only the caller uses; they are reset.
    """
    for metric in metrics:
        metric.reset()
    count = 1 + len(config.task.numbers) + len(config.metrics) + 1 + len(config.task.names)
    return torch.full((count,), math.nan, dtype=torch.float64, device=device)


def sums_of(means: Tensor, weights: float | Tensor) -> Tensor:
    """Return means times weights, 0 where the weight is 0, since the mean there is 0 / 0.

    Args:
        means: means over samples, of any shape.
        weights: sums of the samples' weights, of the same shape.
    """
    return (means * weights).where(weights > 0, 0.0) if isinstance(weights, Tensor) else means * weights


def mean_scores(
    task: Task,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Iterable[ClientMetric],
    batches: Iterable[tuple[Tensor, Tensor]],
    shown: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute mean loss (infinity instead of NaN), the task's numbers and metrics, on the device of the outputs.

    Means are over all samples with the task's weights, so that they do not depend on the division into batches.

    Args:
        task: gives the statistics and the weights of samples.
        loss: (outputs, targets) -> mean loss of a batch.
        metrics: metrics that only the caller uses; they are reset first.
        batches: pairs of outputs and targets, at least one.
        shown: function whose result on the outputs, which are probabilities, is passed to the metrics; None: the
            outputs are those of the network.

    Returns:
        float64 [1 + numbers + metrics + 1 + statistics]: the loss, the task's numbers, the metrics, the sum of the
        samples' weights, and the means of the task's statistics.
    """
    metrics = list(metrics)
    for metric in metrics:
        metric.reset()
    total: float | Tensor = 0.0
    sums: dict[str, float | Tensor] = dict.fromkeys(task.names, 0.0)
    weight: float | Tensor = 0.0
    for outputs, targets in batches:
        weights, statistics = task.weights(targets), task.statistics(outputs, targets)
        now = len(targets) if weights is None else weights.sum().double()
        total = total + sums_of(loss(outputs, targets).double(), now)
        sums = {name: value + statistics[name].sum(dtype=torch.float64) for name, value in sums.items()}
        weight = weight + now
        for metric in metrics:
            metric.update(task, outputs if shown is None else shown(outputs), targets, shown is not None)
    mean = torch.as_tensor(total / weight)
    mean = torch.where(mean.isnan(), math.inf, mean)
    means = {name: torch.as_tensor(value / weight) for name, value in sums.items()}
    numbers = task.finish(means)
    computed = (metric.compute().to(mean.device) for metric in metrics)
    of_samples = torch.as_tensor(weight, dtype=torch.float64, device=mean.device)
    return torch.stack([mean, *(numbers[name] for name in task.numbers), *computed, of_samples, *means.values()])
