"""Mean loss, the task's numbers and metrics of one model, computed from its outputs batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torchmetrics import Metric

from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.tasks import Task


def no_scores(config: EngineConfig, device: torch.device) -> Tensor:
    """Return the scores of a model without samples: NaN, float64, as many as `mean_scores` returns."""
    count = 1 + len(config.task.numbers) + len(config.metrics) + 1 + len(config.task.names)
    return torch.full((count,), math.nan, dtype=torch.float64, device=device)


def own_metrics(config: EngineConfig, device: torch.device) -> list[Metric]:
    """Copy the config's metrics to a device, so that only the caller's own `mean_scores` write into them."""
    return [metric.clone().to(device) for metric in config.metrics.values()]


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
    metrics: Iterable[Metric],
    batches: Iterable[tuple[Tensor, Tensor]],
    shown: Callable[[Tensor], Tensor] = lambda outputs: outputs,
) -> Tensor:
    """Compute mean loss (infinity instead of NaN), the task's numbers and metrics, on the device of the outputs.

    Means are over all samples with the task's weights, so that they do not depend on the division into batches.

    Args:
        task: gives the statistics and the weights of samples.
        loss: (outputs, targets) -> mean loss of a batch.
        metrics: see `own_metrics`; they are reset first.
        batches: pairs of outputs and targets, at least one.
        shown: function whose result on the outputs is passed to the metrics.

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
            metric.update(*task.for_metrics(shown(outputs), targets))
    mean = torch.as_tensor(total / weight)
    mean = torch.where(mean.isnan(), math.inf, mean)
    means = {name: torch.as_tensor(value / weight) for name, value in sums.items()}
    numbers = task.finish(means)
    computed = (torch.as_tensor(metric.compute(), device=mean.device).double().reshape(()) for metric in metrics)
    of_samples = torch.as_tensor(weight, dtype=torch.float64, device=mean.device)
    return torch.stack([mean, *(numbers[name] for name in task.numbers), *computed, of_samples, *means.values()])
