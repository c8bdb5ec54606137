"""A metric's number of one client: NaN where it is not defined, or where the metric fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torchmetrics.classification as of_classes
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import prints

from dfl_lightning.metrics.built_in import BuiltIn
from dfl_lightning.metrics.conditions import Kind, Seen, kind_of
from dfl_lightning.tasks import Task
from dfl_lightning.utils.errors import UserError, is_gpu_failure, is_out_of_memory, reason

__all__ = ["ClientMetric", "metrics_of"]


_OF_PROBABILITIES = (
    *(of_classes.MulticlassPrecisionRecallCurve, of_classes.MulticlassCalibrationError),
    of_classes.MulticlassHingeLoss,
)
"""The classes of torchmetrics that apply a softmax to scores."""


class ClientMetric:
    """A copy of a metric that computes the number of one client after another.

    The number is NaN where the metric returns NaN, where its mathematics has no value (`conditions`), where its own
    method `is_undefined` says so, and where it raises an error, which `error` keeps. A mean over classes or columns is
    over those for which the metric is defined, as a mean over clients is.

    Args:
        metric: a metric, which is copied.
        device: device of the outputs.

    Attributes:
        error: the error that the metric has raised since `reset`; None if there was none.
    """

    def __init__(self, metric: Metric, device: torch.device | str = "cpu") -> None:
        self.metric = metric.clone().to(device)
        self._kind = kind_of(metric)
        self._of_probabilities = isinstance(metric, _OF_PROBABILITIES)
        self.error: Exception | None = None
        self._seen = Seen()

    def reset(self) -> None:
        """Forget all samples."""
        self.metric.reset()
        self.error, self._seen = None, Seen()

    def update(self, task: Task, outputs: Tensor, targets: Tensor, probabilities: bool = False) -> None:
        """Add some samples.

        Args:
            task: converts outputs and targets.
            outputs: outputs of the network, [B, *output shape], or probabilities of classes.
            targets: [B, *target shape].
            probabilities: True if the outputs are probabilities already.
        """
        if self.error is not None:
            return
        try:
            with quiet():
                if isinstance(self.metric, BuiltIn):
                    shares = outputs if probabilities else task.probabilities(outputs.double())
                    assert shares is not None, "`try_metric` refuses other tasks"
                    self.metric.update(shares, targets)
                    return
                outputs, targets = given_to(self.metric, *task.for_metrics(outputs, targets))
                if self._of_probabilities and task.has_classes and not probabilities:
                    # torchmetrics would take scores for probabilities if all of a batch are between 0 and 1.
                    shares = task.probabilities(outputs)
                    outputs = outputs if shares is None else shares
                self.metric.update(outputs, targets)
                if self._kind is not None and self._kind.defined is not None:
                    self._seen.add(outputs, targets)
        except Exception as error:
            self._keep(error)

    def compute(self) -> Tensor:
        """Return the number of the client, a float64 scalar; NaN, on the CPU, if it is not defined."""
        try:
            with quiet():
                if self.error is None and not self._is_undefined():
                    return self._value().double().reshape(())
        except Exception as error:
            self._keep(error)
        return torch.tensor(torch.nan, dtype=torch.float64)

    def _keep(self, error: Exception) -> None:
        """Keep an error about a client's samples; raise others, such as those of a lack of memory."""
        if isinstance(error, UserError) or is_out_of_memory(error) or is_gpu_failure(error):
            raise error
        self.error = error

    @property
    def failure(self) -> str:
        """The error in words; empty if there is none."""
        return "" if self.error is None else reason(self.error)

    def _is_undefined(self) -> bool:
        says = getattr(self.metric, "is_undefined", None)
        return says is not None and bool(says())

    def _value(self) -> Tensor:
        kind = self._kind
        defined = None if kind is None or kind.defined is None else kind.defined(self.metric, self._seen)
        if defined is None or bool(defined.all()):
            return torch.as_tensor(self.metric.compute())
        assert kind is not None
        option, averaging, each = kind.parts
        way = getattr(self.metric, option, None)
        chosen = getattr(self.metric, "zero_division", 0)
        if chosen:  # the user has said what 0 / 0 is
            return torch.as_tensor(self.metric.compute())
        if way not in averaging or not bool(defined.any()):
            return torch.tensor(torch.nan)
        weights = _weights(kind, self.metric) if way == "weighted" else defined.double()
        setattr(self.metric, option, each)
        try:
            values = torch.as_tensor(self.metric.compute()).double()
        finally:
            setattr(self.metric, option, way)
        weights = weights.to(values.device).where(defined.to(values.device), 0.0)
        return (values.where(weights > 0, 0.0) * weights).sum() / weights.sum()


def given_to(metric: Metric, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of one column as vectors, if a metric is made for one number of each sample.

    Args:
        metric: a metric; torchmetrics' for one number have `num_outputs=1`.
        outputs: [B, ...].
        targets: [B, ...].
    """
    is_column = outputs.dim() == targets.dim() == 2 and outputs.shape[1] == targets.shape[1] == 1
    if getattr(metric, "num_outputs", None) == 1 and is_column:
        return outputs.squeeze(1), targets.squeeze(1)
    return outputs, targets


def metrics_of(metrics: Mapping[str, Metric], device: torch.device | str) -> list[ClientMetric]:
    """Copy metrics to a device, so that they write into no state of another thread.

    Args:
        metrics: metrics by the name of their column.
        device: device of the outputs.
    """
    return [ClientMetric(metric, device) for metric in metrics.values()]


def _weights(kind: Kind, metric: Metric) -> Tensor:
    assert kind.support is not None
    return kind.support(metric).double()


_LOCK, _QUIET = threading.Lock(), {"count": 0, "rank": 0}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torchmetrics' own warnings about values that are not defined, in all threads, inside a block.

    Python's filters are not used, since threads share them and `catch_warnings` would restore those of another thread.
    """
    with _LOCK:
        if not _QUIET["count"]:
            _QUIET["rank"] = prints.rank_zero_only.rank  # type: ignore[attr-defined]
            prints.rank_zero_only.rank = -1  # type: ignore[attr-defined]
        _QUIET["count"] += 1
    try:
        yield
    finally:
        with _LOCK:
            _QUIET["count"] -= 1
            if not _QUIET["count"]:
                prints.rank_zero_only.rank = _QUIET["rank"]  # type: ignore[attr-defined]
