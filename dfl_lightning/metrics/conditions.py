"""The conditions under which metrics of torchmetrics are defined, by the mathematics of what they compute.

torchmetrics returns a number, mostly 0, where a formula is 0 / 0, and counts it as 0 in means over classes. A `Kind`
says for which classes or columns the formula has a value on the samples that a metric has seen. It holds for
subclasses, unless they compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torchmetrics.classification as of_classes
import torchmetrics.regression as of_numbers
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

__all__ = ["KINDS", "Kind", "Seen", "kind_of"]


class Seen:
    """The facts about the outputs and targets of a client that conditions on numbers need.

    Attributes:
        count: number of samples.
    """

    def __init__(self) -> None:
        self.count = 0
        self._ends: dict[str, Tensor] = {}
        self._has_zero = False

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add some samples.

        Args:
            outputs: [B, ...].
            targets: [B, ...].
        """
        self.count += len(targets)
        self._has_zero = self._has_zero or bool((targets == 0).any())
        for name, values in (("outputs", outputs), ("targets", targets)):
            columns = values.reshape(len(values), -1)
            ends = torch.stack([columns.amin(0), columns.amax(0)])
            if name in self._ends:
                before = self._ends[name]
                ends = torch.stack([torch.minimum(before[0], ends[0]), torch.maximum(before[1], ends[1])])
            self._ends[name] = ends

    def varies(self, name: str) -> Tensor:
        """Mark the columns whose values are not all equal, bool [columns].

        Args:
            name: `outputs` or `targets`.
        """
        low, high = self._ends[name]
        return low < high

    @property
    def has_zero_target(self) -> bool:
        """True if a target is 0."""
        return self._has_zero

    @property
    def has_other_target(self) -> bool:
        """True if a target is not 0."""
        return bool((self._ends["targets"] != 0).any())


@dataclass(frozen=True)
class Kind:
    """The condition under which a kind of metric is defined.

    Attributes:
        undefined: the words for the samples on which it is not, for tables and messages; empty: it always is.
        defined: (metric, seen) -> bool, a scalar, or one for each class, label or column.
        support: (metric) -> weights of the classes in a weighted mean.
        parts: name of the option that averages over classes or columns, its averaging values, and the value with which
            the metric returns a number for each.
    """

    undefined: str = ""
    defined: Callable[[Any, Seen], Tensor] | None = None
    support: Callable[[Any], Tensor] | None = None
    parts: tuple[str, tuple[str, ...], Any] = ("average", ("macro", "weighted"), None)


def kind_of(metric: Metric | type[Metric]) -> Kind | None:
    """Return the kind of a metric; None if it is not of torchmetrics, or a subclass computes something else.

    Args:
        metric: a metric, or its class.
    """
    cls = metric if isinstance(metric, type) else type(metric)
    if not (cls.compute.__module__ or "").startswith("torchmetrics."):
        return None
    return next((KINDS[base] for base in cls.__mro__ if base in KINDS), None)


# --- counts of a decision -------------------------------------------------------------------------------------------
def _counts(metric: Any) -> dict[str, Tensor]:
    """Return TP, FP, TN, FN of each class, or their sums if the metric sums over classes."""
    counts = {name: dim_zero_cat(getattr(metric, name)) for name in ("tp", "fp", "tn", "fn")}
    if getattr(metric, "average", None) == "micro":
        counts = {name: count.sum() for name, count in counts.items()}
    return counts


def _any_of(*names: str) -> Callable[[Any, Seen], Tensor]:
    """Return the condition that the sum of some counts, the denominator of a quotient, is not 0."""

    def defined(metric: Any, seen: Seen) -> Tensor:
        counts = _counts(metric)
        return torch.stack([counts[name] for name in names]).sum(0) > 0

    return defined


def _true_samples(metric: Any) -> Tensor:
    counts = _counts(metric)
    return counts["tp"] + counts["fn"]


def _matrix_counts(metric: Any) -> tuple[Tensor, Tensor]:
    """Return TP + FP + FN and TP + FN of each class from a confusion matrix."""
    matrix = metric.confmat
    if matrix.dim() == 3:
        found, support = matrix[:, 0, 1] + matrix[:, 1, 0] + matrix[:, 1, 1], matrix[:, 1].sum(-1)
    elif isinstance(metric, of_classes.BinaryJaccardIndex):
        found, support = matrix.sum() - matrix[0, 0], matrix[1].sum()
    else:
        found, support = matrix.sum(0) + matrix.sum(1) - matrix.diag(), matrix.sum(1)
    if getattr(metric, "average", None) == "micro":
        return found.sum(), support.sum()
    return found, support


def _spread_of_matrix(metric: Any, seen: Seen) -> Tensor:
    """Return the condition of a correlation: neither all targets nor all predictions are of one class."""
    matrix = metric.confmat.sum(0) if metric.confmat.dim() == 3 else metric.confmat
    return torch.stack([(matrix.sum(dim) > 0).sum() > 1 for dim in (0, 1)]).all()


def _disagreement_by_chance(metric: Any, seen: Seen) -> Tensor:
    """Return the condition of kappa: targets and predictions are not all of the same single class."""
    matrix = metric.confmat.double()
    weight = torch.ones_like(matrix) - torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return (weight * torch.outer(matrix.sum(1), matrix.sum(0))).sum() > 0


# --- curves ---------------------------------------------------------------------------------------------------------
def _positives_and_negatives(metric: Any) -> tuple[Tensor, Tensor]:
    """Count positive and negative samples of each class or label, or all together if the metric joins them."""
    joins = getattr(metric, "average", None) == "micro"
    if metric.thresholds is not None:
        at_first = metric.confmat[0]
        negative, positive = at_first.sum(-1).unbind(-1)
    else:
        targets = dim_zero_cat(metric.target)
        classes = getattr(metric, "num_classes", None)
        if classes is not None and not joins:
            positive = torch.bincount(targets, minlength=classes)
            negative = len(targets) - positive
        else:
            positive, negative = (targets == 1).sum(0), (targets == 0).sum(0)
    return (positive.sum(), negative.sum()) if joins else (positive, negative)


def _has_both(metric: Any, seen: Seen) -> Tensor:
    positive, negative = _positives_and_negatives(metric)
    return (positive > 0) & (negative > 0)


def _all_have_both(metric: Any, seen: Seen) -> Tensor:
    return _has_both(metric, seen).all()


def _has_positive(metric: Any, seen: Seen) -> Tensor:
    return _positives_and_negatives(metric)[0] > 0


def _positives(metric: Any) -> Tensor:
    return _positives_and_negatives(metric)[0]


# --- numbers --------------------------------------------------------------------------------------------------------
def _targets_vary(metric: Any, seen: Seen) -> Tensor:
    varies = seen.varies("targets")
    adjusted = getattr(metric, "adjusted", 0)
    if adjusted and seen.count - adjusted - 1 <= 0:
        return torch.zeros_like(varies)
    return varies.any() if getattr(metric, "multioutput", "") == "variance_weighted" else varies


def _all_targets_vary(metric: Any, seen: Seen) -> Tensor:
    return seen.varies("targets").all()


def _both_vary(metric: Any, seen: Seen) -> Tensor:
    return (seen.varies("outputs") & seen.varies("targets")).all()


def _scale_is_not_zero(metric: Any, seen: Seen) -> Tensor:
    """Return the condition on the divisor of a normalised root mean squared error."""
    if metric.normalization in ("range", "std"):
        return _all_targets_vary(metric, seen)
    scale = metric.mean_val if metric.normalization == "mean" else metric.target_squared
    return (torch.as_tensor(scale) != 0).all()


def _event_is_there(metric: Any, seen: Seen) -> Tensor:
    counts = [dim_zero_cat(getattr(metric, name)) for name in ("hits", "misses", "false_alarms")]
    return torch.stack(counts).sum() > 0


ALWAYS = Kind()
_RAW = ("multioutput", ("uniform_average",), "raw_values")
_COUNTED: Mapping[str, Kind] = {
    "Precision": Kind("no sample is predicted positive", _any_of("tp", "fp"), _true_samples),
    "Recall": Kind("no sample is positive", _any_of("tp", "fn"), _true_samples),
    "Specificity": Kind("no sample is negative", _any_of("tn", "fp"), _true_samples),
    "NegativePredictiveValue": Kind("no sample is predicted negative", _any_of("tn", "fn"), _true_samples),
    "FBetaScore": Kind("no sample is positive or predicted positive", _any_of("tp", "fp", "fn"), _true_samples),
    "JaccardIndex": Kind(
        "no sample is positive or predicted positive",
        lambda metric, seen: _matrix_counts(metric)[0] > 0,
        lambda metric: _matrix_counts(metric)[1],
    ),
    "MatthewsCorrCoef": Kind("all samples are, or are predicted, alike", _spread_of_matrix),
    "CohenKappa": Kind("all samples are of one class and predicted to be of it", _disagreement_by_chance),
    "AUROC": Kind("all samples are positive, or none is", _has_both, _positives),
    "LogAUC": Kind("all samples are positive, or none is", _has_both, _positives),
    "EER": Kind("all samples are positive, or none is, for any class", _all_have_both),
    "AveragePrecision": Kind("no sample is positive", _has_positive, _positives),
    **dict.fromkeys(
        ("CalibrationError", "HingeLoss", "ExactMatch", "CoverageError", "RankingAveragePrecision", "RankingLoss"),
        ALWAYS,
    ),
}
_PREFIXES = ("Binary", "Multiclass", "Multilabel")
_OF_CLASS = Kind("no sample is of the class", _any_of("tp", "fn"), _true_samples)
_SAME = "all targets are equal, as those of one sample are"

KINDS: Mapping[type[Metric], Kind] = {
    **{
        getattr(of_classes, prefix + name): kind
        for name, kind in _COUNTED.items()
        for prefix in _PREFIXES
        if hasattr(of_classes, prefix + name)
    },
    **{
        getattr(of_classes, prefix + name): _OF_CLASS if prefix == "Multiclass" else ALWAYS
        for name in ("Accuracy", "HammingDistance")
        for prefix in _PREFIXES
    },
    of_numbers.R2Score: Kind(_SAME, _targets_vary, parts=_RAW),
    of_numbers.ExplainedVariance: Kind(_SAME, _targets_vary, parts=_RAW),
    of_numbers.RelativeSquaredError: Kind(_SAME, _all_targets_vary),
    of_numbers.NormalizedRootMeanSquaredError: Kind(
        "what it divides by is 0: the mean, range, deviation or square of the targets", _scale_is_not_zero
    ),
    **{
        kind: Kind("all targets, or all outputs, are equal, as those of one sample are", _both_vary)
        for kind in (of_numbers.PearsonCorrCoef, of_numbers.SpearmanCorrCoef, of_numbers.KendallRankCorrCoef)
    },
    of_numbers.ConcordanceCorrCoef: Kind("all targets, or all outputs, are equal", _both_vary),
    of_numbers.MeanAbsolutePercentageError: Kind(
        "a target is 0", lambda metric, seen: torch.tensor(not seen.has_zero_target)
    ),
    of_numbers.WeightedMeanAbsolutePercentageError: Kind(
        "all targets are 0", lambda metric, seen: torch.tensor(seen.has_other_target)
    ),
    of_numbers.CriticalSuccessIndex: Kind("no target and no output reaches the threshold", _event_is_there),
    of_numbers.CosineSimilarity: Kind("a sample's targets or outputs are all 0"),
    of_numbers.TweedieDevianceScore: Kind("a number is out of the range of its power"),
    of_numbers.MeanSquaredLogError: Kind("a number is below -1"),
    of_numbers.KLDivergence: Kind("a row is no distribution"),
    of_numbers.JensenShannonDivergence: Kind("a row is no distribution"),
    **dict.fromkeys(
        (
            *(of_numbers.LogCoshError, of_numbers.MeanAbsoluteError, of_numbers.MeanSquaredError),
            *(of_numbers.MinkowskiDistance, of_numbers.SymmetricMeanAbsolutePercentageError),
            of_numbers.ContinuousRankedProbabilityScore,
        ),
        ALWAYS,
    ),
}
"""The kinds of the classes of torchmetrics, by class."""
