"""The check of metrics before training: on a few samples, and on the targets of every client."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import torch
import torchmetrics.classification as of_classes
from torch import Tensor
from torchmetrics import Metric

from dfl_lightning.metrics.built_in import BuiltIn
from dfl_lightning.metrics.client_metric import ClientMetric, quiet
from dfl_lightning.metrics.conditions import kind_of
from dfl_lightning.metrics.names import BUILT_IN
from dfl_lightning.tasks import Forecast, MultiLabel, Regression, Task
from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.randomness.global_generators import no_global_draws

__all__ = ["MOST_CLIENTS", "about_clients", "try_metric"]

MOST_CLIENTS = 300
"""The largest number of clients whose targets are tried before training: those with the fewest samples."""

MOST_OUTPUTS = 10_000_000
"""The largest number of outputs that are drawn for a client."""

_ONE_NUMBER = {
    "ConfusionMatrix": ("CohenKappa", "balanced_accuracy"),
    "StatScores": ("F1Score", "f1_macro"),
    "ROC": ("AUROC", "auroc"),
    "PrecisionRecallCurve": ("AveragePrecision", "average_precision"),
    "RecallAtFixedPrecision": ("AveragePrecision", "average_precision"),
    "PrecisionAtFixedRecall": ("AveragePrecision", "average_precision"),
    "SensitivityAtSpecificity": ("AUROC", "auroc"),
    "SpecificityAtSensitivity": ("AUROC", "auroc"),
}
"""The classes that return one number instead of several, without their prefix, and the built-in metric."""


def try_metric(
    column: str, metric: Metric, outputs: Tensor, targets: Tensor, task: Task, draws: Callable[[str], str]
) -> None:
    """Check that a metric takes the outputs and targets of a task, and returns one number.

    Args:
        column: name of its column.
        metric: the metric.
        outputs: outputs of the network for some samples, [B, *output shape].
        targets: [B, *target shape].
        task: the task of the run.
        draws: (names of generators) -> the message if the metric draws from global random generators.

    Raises:
        UserError: it is for another task, fails on the samples, or returns several numbers; names the class to take.
    """
    what = f"model.metrics {said(column, metric)}"
    if column in ("loss", *task.numbers):
        raise UserError(
            f"{what} would have the column '{column}', which model.task {type(task).__name__} reports already; leave "
            "it out, or give a class of your own the attribute column = 'its_name'"
        )
    _refuse_other_tasks(what, metric, outputs, task)
    given = task.for_metrics(outputs, targets)
    names = ("scores", "labels") if task.has_classes else ("outputs", "targets")
    shapes = (str(["B", *tensor.shape[1:]]).replace("'", "") for tensor in given)
    fails = f"{what} ({column}) fails on {' and '.join(f'{n} {s}' for n, s in zip(names, shapes, strict=True))}"
    with reported_as(lambda error: UserError(f"{fails}: {reason(error)}")), no_global_draws(draws):
        trial = ClientMetric(metric, outputs.device)
        trial.update(task, outputs, targets)
        if trial.error is not None:
            if getattr(metric, "num_outputs", None) == 1 and outputs.dim() == 2 and outputs.shape[1] > 1:
                raise UserError(
                    f"{what} is for one number of each sample, and the targets have {outputs.shape[1]} columns; take "
                    "torchmetrics.R2Score, which is a mean over columns"
                )
            raise trial.error
        with quiet():
            value = trial.metric.compute()
    _refuse_several(what, metric, value)


def said(column: str, metric: Metric) -> str:
    """Return the name of a metric for messages: that of a built-in one, or the class's.

    Args:
        column: name of its column.
        metric: the metric.
    """
    return column if isinstance(metric, BuiltIn) else type(metric).__name__


def _refuse_other_tasks(what: str, metric: Metric, outputs: Tensor, task: Task) -> None:
    """Raise if a metric is for other outputs than those of the task."""
    of_task = f"model.task {type(task).__name__}"
    classes, labels = task.has_classes, isinstance(task, MultiLabel)
    if isinstance(metric, BuiltIn):
        if task.probabilities(outputs[:1]) is None:
            raise UserError(f"{what} is for classes or labels, which {of_task} does not have; leave it out")
        if labels and not metric.of_labels:
            raise UserError(f"{what} is for classes, and {of_task} has labels; leave it out")
        return
    needed = [
        parameter.name
        for parameter in inspect.signature(type(metric).update).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ][1:]
    if len(needed) > 2:
        raise UserError(f"{what} needs {', '.join(needed)}, but a metric gets outputs and targets only; leave it out")
    prefix, rest = _family(metric)
    count = outputs.shape[-1]
    if classes and prefix == "Binary":
        better = _counterpart(rest, "Multiclass", "num_classes", count)
        raise UserError(
            f"{what} is for one score of each sample, but the network of {of_task} returns {count}, one of each class; "
            f"take {better}"
        )
    if classes and prefix == "Multilabel":
        better = _counterpart(rest, "Multiclass", "num_classes", count)
        raise UserError(f"{what} is for labels, and {of_task} has classes; take {better}")
    if labels and prefix == "Multiclass":
        better = _counterpart(rest, "Multilabel", "num_labels", count)
        raise UserError(f"{what} is for one class of each sample, and {of_task} has labels; take {better}")
    for option, wanted in (("num_classes", "Multiclass"), ("num_labels", "Multilabel")):
        number = getattr(metric, option, None)
        if prefix == wanted and number is not None and number != count and (classes or labels):
            raise UserError(
                f"{what} has {option}={number}, but the network returns {count} scores; set {option}: {count}"
            )
    if prefix and isinstance(task, Regression | Forecast):
        raise UserError(
            f"{what} is for classes or labels, and {of_task} has numbers; take one of torchmetrics.regression, such as "
            "torchmetrics.R2Score"
        )


def _refuse_several(what: str, metric: Metric, value: object) -> None:
    """Raise if a metric has not returned one number; name the class that does."""
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return
    if isinstance(value, Tensor):
        found = f"{list(value.shape)} numbers"
    elif isinstance(value, Mapping):
        found = "several numbers by name"
    else:
        found = f"a {type(value).__name__}"
    sentence = f"{what} returns {found}, and a column has one of each client"
    prefix, rest = _family(metric)
    if rest in _ONE_NUMBER:
        name, own = _ONE_NUMBER[rest]
        kind = getattr(of_classes, prefix + name, None)
        raise UserError(f"{sentence}; take {f'{kind.__name__} or ' if kind is not None else ''}{own}")
    if isinstance(value, Mapping):
        raise UserError(f"{sentence}; list its metrics one by one")
    ways = {
        "average": "macro",
        "multidim_average": "global",
        "multioutput": "uniform_average",
        "reduction": "mean",
        "num_outputs": 1,
    }
    numbered = isinstance(value, Tensor) and value.dim() == 1
    for option, way in ways.items():
        if numbered and hasattr(metric, option) and getattr(metric, option) != way:
            if option == "num_outputs":
                raise UserError(f"{sentence}; take torchmetrics.R2Score, which is a mean over columns")
            raise UserError(f"{sentence}; set {option}: {way}")
    raise UserError(f"{sentence}; " + ("take auroc" if rest in ("EER", "LogAUC") else "let compute return a scalar"))


def _family(metric: Metric) -> tuple[str, str]:
    """Return the prefix of a metric of classes and the rest of its name, by its base in torchmetrics."""
    for cls in type(metric).__mro__:
        if cls.__module__.startswith("torchmetrics.classification."):
            for prefix in ("Binary", "Multiclass", "Multilabel"):
                if cls.__name__.startswith(prefix):
                    return prefix, cls.__name__.removeprefix(prefix)
    return "", type(metric).__name__


def _counterpart(rest: str, prefix: str, option: str, count: int) -> str:
    """Name the class with another prefix, and the built-in metric of the same kind."""
    own = {
        "AUROC": "auroc",
        "AveragePrecision": "average_precision",
        "F1Score": "f1_macro",
        "CalibrationError": "ece" if prefix == "Multiclass" else "",
    }.get(rest, "")
    names = [f"{prefix}{rest} with {option}: {count}"] if hasattr(of_classes, prefix + rest) else []
    return " or ".join([*names, *([own] if own else [])]) or f"one of {', '.join(BUILT_IN)}"


# --- each client's targets ------------------------------------------------------------------------------------------
def about_clients(
    metrics: Mapping[str, Metric], targets: Mapping[str, Mapping[int, Tensor]], task: Task, shape: tuple[int, ...]
) -> Iterator[str]:
    """Say for which clients a metric is not defined whatever a model predicts, or fails.

    Outputs are drawn twice, the second ones opposite to the first. So a metric that is not defined because of one
    model's predictions is not named.

    Args:
        metrics: metrics by the name of their column.
        targets: each client's targets by split, [n, *target shape], of those with at least one sample.
        task: the task of the run.
        shape: shape of a network's output for one sample.

    Yields:
        A sentence for each split and metric that is not defined for some clients.
    """
    generator = torch.Generator().manual_seed(0)
    for split, of_clients in targets.items():
        few = sorted(of_clients, key=lambda client: (len(of_clients[client]), client))[:MOST_CLIENTS]
        few = [client for client in few if len(of_clients[client]) * math.prod(shape) <= MOST_OUTPUTS]
        missing: dict[str, dict[int, str]] = defaultdict(dict)
        tried = {column: ClientMetric(metric) for column, metric in metrics.items()}
        for client in few:
            drawn = torch.randn(len(of_clients[client]), *shape, generator=generator)
            for column, metric in tried.items():
                why = [_why_undefined(metric, task, sign * drawn, of_clients[client]) for sign in (1, -1)]
                if all(why):
                    missing[column][client] = why[0]
        among = (
            f"{len(few)} clients" if len(few) == len(of_clients) else f"the {len(few)} clients with the fewest samples"
        )
        for column, clients in missing.items():
            yield from _sentences(f"{split}_{column}", clients, among, split)


def _sentences(name: str, clients: Mapping[int, str], among: str, split: str) -> Iterator[str]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for client, why in clients.items():
        by_reason[why].append(client)
    for why, several in by_reason.items():
        listed = ", ".join(map(str, sorted(several)[:10])) + ", …" * (len(several) > 10)
        yield (
            f"{name} is undefined for {len(several)} of {among} ({listed}): {why}, in their {split} data; they are "
            "left out of its means"
        )


def _why_undefined(metric: ClientMetric, task: Task, outputs: Tensor, targets: Tensor) -> str:
    """Return the reason for which a metric has no number; an empty text if it has one."""
    metric.reset()
    metric.update(task, outputs, targets)
    if not bool(metric.compute().isnan()):
        return ""
    if metric.error is not None:
        return reason(metric.error)
    kind = kind_of(metric.metric)
    words = metric.metric.undefined if isinstance(metric.metric, BuiltIn) else "" if kind is None else kind.undefined
    several = _family(metric.metric)[0] in ("Multiclass", "Multilabel")
    return (f"of every class, {words}" if several else words) if words else "it has no value"
