"""Mean loss, the task's numbers and metrics of one model's outputs, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torchmetrics import Metric

from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.tasks import Task


def no_scores(config: EngineConfig, device: torch.device) -> Tensor:
    """What `mean_scores` is without samples: NaN, float64 of the same length.

    Args:
        config: has the task and the metrics.
        device: of the numbers.
    """
    count = 1 + len(config.task.numbers) + len(config.metrics) + 1 + len(config.task.names)
    return torch.full((count,), math.nan, dtype=torch.float64, device=device)


def own_metrics(config: EngineConfig, device: torch.device) -> list[Metric]:
    """Metrics of the config that nothing else writes into, for one call of `mean_scores` after the other.

    Args:
        config: has the metrics.
        device: of what they are given.
    """
    return [metric.clone().to(device) for metric in config.metrics.values()]


def sums_of(means: Tensor, weights: float | Tensor) -> Tensor:
    """Return means times weights; the mean of samples that all count for nothing, 0 / 0, adds nothing.

    Args:
        means: of any shape.
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
    """Mean loss (infinite where it is NaN), the task's numbers and metrics; they stay where the outputs are.

    A mean is over all samples, by the task's weights, so that it does not matter how they are split.

    Args:
        task: says what a sample's numbers are, and how much it counts.
        loss: mean loss of a batch, from outputs and targets.
        metrics: see `own_metrics`; reset first.
        batches: outputs and targets, one batch at least.
        shown: what the metrics are given of the outputs.

    Returns:
        float64 [1 + numbers + metrics + 1 + statistics]; the last ones are the sum of the samples' weights, and the
        means of the task's statistics.
    """
    metrics = list(metrics)
    for metric in metrics:
        metric.reset()
    total: float | Tensor = 0.0
    sums: dict[str, float | Tensor] = dict.fromkeys(task.names, 0.0)
    weight: float | Tensor = 0.0
    for outputs, targets in batches:
        weights, found = task.weights(targets), task.statistics(outputs, targets)
        now = len(targets) if weights is None else weights.sum().double()
        total = total + sums_of(loss(outputs, targets).double(), now)
        sums = {name: value + found[name].sum(dtype=torch.float64) for name, value in sums.items()}
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
