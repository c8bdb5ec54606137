"""The built-in metrics as scikit-learn computes them, in batches, with ties, and on clients without a value."""

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from dfl_lightning.metrics import ECE, ClientMetric, built_in
from dfl_lightning.tasks import Classification, MultiLabel

NAMES = ["auroc", "average_precision", "f1_macro", "balanced_accuracy", "ece"]


def number(name, outputs, targets, task):
    metric = ClientMetric(built_in(name))
    for some, wanted in zip(outputs.split(7), targets.split(7), strict=True):
        metric.update(task, some, wanted)
    return float(metric.compute())


def mean_defined(values):
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def of_each(score, y, p):
    """The score of each class or label against the others; NaN without a positive or, for the area, a negative."""
    need = 2 if score is sk.roc_auc_score else 1
    return [
        score(y[:, c], p[:, c]) if y[:, c].any() and len(set(y[:, c])) >= need else math.nan for c in range(y.shape[1])
    ]


def of_ece(y, p, bins=15):
    """The definition, a bin after the other."""
    sure, right = p.max(1), p.argmax(1) == y
    inside = [(sure > k / bins) & (sure <= (k + 1) / bins) for k in range(bins)]
    return sum(some.sum() * abs(sure[some].mean() - right[some].mean()) for some in inside if some.any()) / len(y)


def wanted_of(name, y, p):
    one_hot = np.eye(p.shape[1], dtype=int)[y]
    of_second = slice(1, None) if p.shape[1] == 2 else slice(None)
    match name:
        case "auroc":
            return mean_defined(of_each(sk.roc_auc_score, one_hot[:, of_second], p[:, of_second]))
        case "average_precision":
            return mean_defined(of_each(sk.average_precision_score, one_hot[:, of_second], p[:, of_second]))
        case "f1_macro":
            return sk.f1_score(y, p.argmax(1), average="macro")
        case "balanced_accuracy":
            return float(np.mean([(p.argmax(1)[y == c] == c).mean() for c in set(y.tolist())]))
        case "ece":
            return of_ece(y, p)


@pytest.mark.parametrize("present", [None, [0, 2], [1]], ids=["all classes", "two of them", "one class"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_classes_agree_with_scikit_learn(name, classes, present):
    g = torch.Generator().manual_seed(classes)
    outputs = torch.randint(-3, 4, (40, classes), generator=g).double()  # with ties
    allowed = torch.tensor([c for c in (present or range(classes)) if c < classes])
    targets = allowed[torch.randint(len(allowed), (40,), generator=g)]
    found = number(name, outputs, targets, Classification())
    wanted = wanted_of(name, targets.numpy(), outputs.softmax(1).numpy())
    assert found == pytest.approx(wanted, abs=1e-12, nan_ok=True)
    assert math.isnan(found) == (len(set(targets.tolist())) == 1 and name == "auroc") or (
        name == "average_precision" and classes == 2
    )


def test_whole_clients_have_scikit_learns_own_means():
    g = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(60, 3, generator=g).double(), torch.randint(3, (60,), generator=g)
    y, p = targets.numpy(), outputs.softmax(1).numpy()
    assert number("auroc", outputs, targets, Classification()) == pytest.approx(
        sk.roc_auc_score(y, p, multi_class="ovr"), abs=1e-12
    )
    assert number("balanced_accuracy", outputs, targets, Classification()) == pytest.approx(
        sk.balanced_accuracy_score(y, p.argmax(1)), abs=1e-12
    )


@pytest.mark.parametrize("empty", [False, True])
def test_labels_agree_with_scikit_learn(empty):
    g = torch.Generator().manual_seed(2)
    outputs = torch.randint(-2, 3, (30, 3), generator=g).double()
    targets = (torch.rand(30, 3, generator=g) < 0.4).float()
    targets[:, 1] = 0
    if empty:
        targets[:] = 0
    y, p = targets.numpy().astype(int), outputs.sigmoid().numpy()
    guess = (p > 0.5).astype(int)
    wanted = {
        "auroc": mean_defined(of_each(sk.roc_auc_score, y, p)),
        "average_precision": mean_defined(of_each(sk.average_precision_score, y, p)),
        "f1_macro": sk.f1_score(y, guess, average="macro", zero_division=np.nan),
        "balanced_accuracy": np.mean(
            [np.mean([(guess[y[:, k] == v, k] == v).mean() for v in set(y[:, k])]) for k in range(3)]
        ),
    }
    found = {name: number(name, outputs, targets, MultiLabel()) for name in wanted}
    assert found == pytest.approx(wanted, abs=1e-12, nan_ok=True)
    assert math.isnan(found["auroc"]) == empty


def test_scores_between_0_and_1_are_scores_still():
    outputs, targets = torch.tensor([[0.2, 0.9], [0.4, 0.3]]), torch.tensor([1, 1])
    p = outputs.double().softmax(1).numpy()
    assert number("ece", outputs, targets, Classification()) == pytest.approx(of_ece(targets.numpy(), p), abs=1e-12)


def test_probabilities_of_a_prediction_are_taken_as_they_are():
    shares, targets = torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([1, 1])
    metric = ClientMetric(ECE(bins=5))
    metric.update(Classification(), shares, targets, probabilities=True)
    assert float(metric.compute()) == pytest.approx(of_ece(targets.numpy(), shares.double().numpy(), 5), abs=1e-7)
