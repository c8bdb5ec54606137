"""Metrics that have a name: AUROC, average precision, F1, balanced accuracy and calibration error of one client."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError

__all__ = ["AUROC", "ECE", "AveragePrecision", "BalancedAccuracy", "BuiltIn", "F1Macro"]


class BuiltIn(RecordsArguments, Metric):
    """A metric of classes or labels that is computed from the probabilities of all samples of a client, in float64.

    It is a mean over the classes, or labels, for which it is defined on the client's samples, and NaN if there is none.

    Attributes:
        column: the name in columns and configs.
        of_labels: True if the metric also exists for the task `MultiLabel`.
        undefined: the words for the samples on which it is not defined; empty: it always is.
    """

    column: ClassVar[str]
    undefined: ClassVar[str] = ""
    of_labels: ClassVar[bool] = True
    probabilities: list[Tensor]
    targets: list[Tensor]
    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("probabilities", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def update(self, probabilities: Tensor, targets: Tensor) -> None:
        """Add some samples.

        Args:
            probabilities: of classes, [B, C], or of labels, [B, L].
            targets: classes, int64 [B], or labels, 0 or 1, [B, L].
        """
        self.probabilities.append(probabilities.detach().double())
        self.targets.append(targets.detach().long())

    def compute(self) -> Tensor:
        """Return the mean over the classes for which the metric is defined, a float64 scalar; NaN if there is none."""
        probabilities, targets = dim_zero_cat(self.probabilities), dim_zero_cat(self.targets)
        if not bool(probabilities.isfinite().all()):
            return probabilities.new_tensor(torch.nan)
        return self.of_client(probabilities, targets)

    @abstractmethod
    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """Compute the metric of all samples, a float64 scalar.

        Args:
            probabilities: of classes, float64 [n, C], or of labels, [n, L].
            targets: classes, int64 [n], or labels, 0 or 1, [n, L].
        """


class AUROC(BuiltIn):
    """Area under the receiver operating characteristic, each class against the others, mean over classes.

    A class counts if some of the client's samples are of it and some are not. Ties count half. With two classes it is
    the usual area, the same for either class. It equals scikit-learn's `roc_auc_score` (of several classes with
    `multi_class="ovr"`, where the client has all of them).

    Examples:
        >>> metric = AUROC()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
        >>> float(metric.compute())
        1.0
    """

    column = "auroc"
    undefined = "all samples are of one class"

    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """See `BuiltIn.of_client`."""
        probabilities, positive = _of_second(targets, probabilities)
        count, n = positive.double().sum(0), len(positive)
        ranks = torch.stack([_mean_ranks(column) for column in probabilities.unbind(1)], 1)
        above = (ranks * positive).sum(0) - count * (count + 1) / 2
        return _mean(above / (count * (n - count)), (count > 0) & (count < n))


class AveragePrecision(BuiltIn):
    """Average precision: the mean precision at the ranks of the positive samples, weighted by the gain of recall.

    Of two classes the second one is positive. Of more classes, or of labels, it is the mean over those that some of the
    client's samples have, each against the others. It equals scikit-learn's `average_precision_score` of each.

    Examples:
        >>> metric = AveragePrecision()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]), torch.tensor([1, 0, 1]))
        >>> round(float(metric.compute()), 4)
        0.8333
    """

    column = "average_precision"
    undefined = "no sample is positive"

    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """See `BuiltIn.of_client`."""
        probabilities, positive = _of_second(targets, probabilities)
        pairs = zip(probabilities.unbind(1), positive.unbind(1), strict=True)
        return _mean(torch.stack([_average_precision(*pair) for pair in pairs]), positive.any(0))


class F1Macro(BuiltIn):
    """F1 = 2 TP / (2 TP + FP + FN) of each class, mean over classes.

    Classes count that some of the client's samples have or are predicted to have. The class with the highest
    probability is predicted, or each label whose probability is above 0.5. It equals scikit-learn's `f1_score` with
    `average="macro"`, of labels with `zero_division=nan`.

    Examples:
        >>> metric = F1Macro()
        >>> metric.update(torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0]]), torch.tensor([0, 0]))
        >>> round(float(metric.compute()), 4)  # 2/3 of the first class and 0 of the second
        0.3333
    """

    column = "f1_macro"

    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """See `BuiltIn.of_client`."""
        positive, predicted = _by_class(targets, probabilities), _predicted(targets, probabilities)
        total = (positive.sum(0) + predicted.sum(0)).double()
        return _mean(2 * (positive & predicted).sum(0) / total, total > 0)


class BalancedAccuracy(BuiltIn):
    """Balanced accuracy: the share of each class's samples that are predicted right, mean over the client's classes.

    Of labels it is the mean over labels of this number for the two classes "has it" and "has it not". It equals
    scikit-learn's `balanced_accuracy_score`.

    Examples:
        >>> metric = BalancedAccuracy()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), torch.tensor([0, 0, 1]))
        >>> float(metric.compute())
        0.25
    """

    column = "balanced_accuracy"

    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """See `BuiltIn.of_client`."""
        positive, predicted = _by_class(targets, probabilities), _predicted(targets, probabilities)
        if targets.dim() == 1:
            return _mean((positive & predicted).sum(0) / positive.double().sum(0), positive.any(0))
        both = torch.stack([positive, ~positive]), torch.stack([predicted, ~predicted])
        count = both[0].double().sum(1)
        shares = ((both[0] & both[1]).sum(1) / count).where(count > 0, 0.0)
        return (shares.sum(0) / (count > 0).sum(0)).mean()


class ECE(BuiltIn):
    """Expected calibration error of the predicted class, in bins of equal width (Guo et al. 2017, arXiv 1706.04599).

    The samples are divided by the probability of their predicted class into bins (k / n, (k + 1) / n]. The error is the
    distance between the mean probability and the accuracy of each bin, mean over samples. Lower is better.

    Args:
        bins: number of bins.

    Examples:
        >>> metric = ECE()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([0, 0]))
        >>> round(float(metric.compute()), 4)  # 0.9 against an accuracy of 0.5
        0.4
    """

    column = "ece"
    of_labels = False
    higher_is_better = False

    def __init__(self, bins: int = 15) -> None:
        super().__init__()
        if bins < 1:
            raise UserError(f"model.metrics ece: bins={bins}; it is a number of bins, 1 or more")
        self.bins = bins

    def of_client(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """See `BuiltIn.of_client`."""
        sure, guess = probabilities.max(1)
        edges = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64, device=sure.device)
        index = torch.bucketize(sure, edges[1:-1])
        excess = sure - (guess == targets).double()
        return sure.new_zeros(self.bins).index_add_(0, index, excess).abs().sum() / len(sure)


def _by_class(targets: Tensor, probabilities: Tensor) -> Tensor:
    """Mark the classes or labels that each sample has, bool [n, C]."""
    if targets.dim() == 2:
        return targets > 0
    return targets.unsqueeze(1) == torch.arange(probabilities.shape[1], device=targets.device)


def _of_second(targets: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities and marks of the classes or labels, of two classes those of the second one only."""
    first = 1 if targets.dim() == 1 and probabilities.shape[1] == 2 else 0
    return probabilities[:, first:], _by_class(targets, probabilities)[:, first:]


def _predicted(targets: Tensor, probabilities: Tensor) -> Tensor:
    """Mark the predicted class or labels of each sample, bool [n, C]."""
    if targets.dim() == 2:
        return probabilities > 0.5
    return _by_class(probabilities.argmax(1), probabilities)


def _mean(values: Tensor, defined: Tensor) -> Tensor:
    """Compute the mean of the defined values; NaN if there is none."""
    return values.double()[defined].mean()


def _mean_ranks(values: Tensor) -> Tensor:
    """Return the ranks of the values from 1, equal ones with the mean of their ranks, float64 [n]."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    return (last - (counts - 1) / 2).double()[inverse]


def _average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """Compute the sum of precisions over distinct scores from above, weighted by the gain of recall."""
    values, inverse = scores.unique(return_inverse=True)
    found = values.new_zeros(len(values)).index_add_(0, inverse, positive.double()).flip(0)
    seen = values.new_zeros(len(values)).index_add_(0, inverse, torch.ones_like(scores)).flip(0)
    return (found * found.cumsum(0) / seen.cumsum(0)).sum() / positive.sum()
