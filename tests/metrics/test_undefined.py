"""All metrics of torchmetrics on clients without a value: scikit-learn's numbers, and a limit that needs no list."""

import copy
import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
import torchmetrics
import torchmetrics.classification as of_classes
from sklearn.exceptions import UndefinedMetricWarning

from dfl_lightning.metrics import ClientMetric
from dfl_lightning.metrics.conditions import KINDS, kind_of
from dfl_lightning.tasks import Classification, MultiLabel, Regression

pytestmark = pytest.mark.filterwarnings("ignore:Metric `Spearman", "ignore:The use of `x.T`")


@pytest.fixture(scope="module")
def script(load):
    return load("list_metrics")


def test_the_tables_of_the_page_are_of_today(script):
    """If they are not, run python scripts/list_metrics.py."""
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_tables(page) == page


def test_every_class_has_a_condition_or_is_refused(script):
    unknown = [cls.__name__ for prefix, _, cls in script.classes() if kind_of(cls) is None]
    assert all(script.refusal(prefix, cls) for prefix, _, cls in script.classes() if cls.__name__ in unknown)
    assert {cls for _, _, cls in script.classes()} >= set(KINDS)


# --- scikit-learn -----------------------------------------------------------------------------------------------------
NAN = {"zero_division": np.nan}
BINARY = {
    "AUROC": lambda y, p, g: sk.roc_auc_score(y, p),
    "AveragePrecision": lambda y, p, g: sk.average_precision_score(y, p),
    "Accuracy": lambda y, p, g: sk.accuracy_score(y, g),
    "CohenKappa": lambda y, p, g: sk.cohen_kappa_score(y, g),
    "F1Score": lambda y, p, g: sk.f1_score(y, g, **NAN),
    "FBetaScore": lambda y, p, g: sk.fbeta_score(y, g, beta=2.0, **NAN),
    "HammingDistance": lambda y, p, g: sk.hamming_loss(y, g),
    "JaccardIndex": lambda y, p, g: sk.jaccard_score(y, g) if (y | g).any() else math.nan,
    "Precision": lambda y, p, g: sk.precision_score(y, g, **NAN),
    "Recall": lambda y, p, g: sk.recall_score(y, g, **NAN),
    "Specificity": lambda y, p, g: sk.recall_score(1 - y, 1 - g, **NAN),
    "NegativePredictiveValue": lambda y, p, g: sk.precision_score(1 - y, 1 - g, **NAN),
}
SEVERAL = {
    "Accuracy": lambda y, p, g: sk.recall_score(y, g, average="macro", **NAN),
    "Recall": lambda y, p, g: sk.recall_score(y, g, average="macro", **NAN),
    "HammingDistance": lambda y, p, g: 1 - sk.recall_score(y, g, average="macro", **NAN),
    "Precision": lambda y, p, g: sk.precision_score(y, g, average="macro", **NAN),
    "F1Score": lambda y, p, g: sk.f1_score(y, g, average="macro", **NAN),
    "FBetaScore": lambda y, p, g: sk.fbeta_score(y, g, beta=2.0, average="macro", **NAN),
    "JaccardIndex": lambda y, p, g: sk.jaccard_score(y, g, average="macro"),
    "CohenKappa": lambda y, p, g: sk.cohen_kappa_score(y, g),
    "AUROC": lambda y, p, g: mean_of(sk.roc_auc_score, y, p),
    "AveragePrecision": lambda y, p, g: mean_of(sk.average_precision_score, y, p),
    "Specificity": lambda y, p, g: one_against_others("Specificity", y, g, p.shape[1]),
    "NegativePredictiveValue": lambda y, p, g: one_against_others("NegativePredictiveValue", y, g, p.shape[1]),
    "MatthewsCorrCoef": lambda y, p, g: correlation(y, g),
}
LABELS = (
    "AUROC",
    "AveragePrecision",
    "Accuracy",
    "F1Score",
    "FBetaScore",
    "HammingDistance",
    "JaccardIndex",
    "Precision",
)
LABELS += ("Recall", "Specificity", "NegativePredictiveValue")
WHOLE_LABELS = {
    "MatthewsCorrCoef": lambda y, p, g: correlation(y.ravel(), g.ravel()),
    "ExactMatch": lambda y, p, g: sk.accuracy_score(y, g),
    "CoverageError": lambda y, p, g: sk.coverage_error(y, p),
    "RankingAveragePrecision": lambda y, p, g: sk.label_ranking_average_precision_score(y, p),
    "RankingLoss": lambda y, p, g: sk.label_ranking_loss(y, p),
}


def one_against_others(name, y, g, classes):
    """Mean over the classes for which the binary number is defined."""
    each = [(y == c).astype(int) for c in range(classes)], [(g == c).astype(int) for c in range(classes)]
    return np.nanmean([defined(lambda a=a, b=b: BINARY[name](a, None, b)) for a, b in zip(*each, strict=True)])


def correlation(y, g):
    """Matthews' correlation; not defined if one side is constant."""
    return sk.matthews_corrcoef(y, g) if len(set(y)) > 1 and len(set(g)) > 1 else math.nan


def mean_of(score, y, p):
    """Mean over the classes for which scikit-learn gives no warning."""
    return np.nanmean([defined(lambda c=c: score(y == c, p[:, c])) for c in range(p.shape[1])] or [math.nan])


def defined(make):
    """Return the number, or NaN if scikit-learn warns that it is ill-defined, or refuses the samples."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            value = make()
        except ValueError:
            return math.nan
    ill = any(
        issubclass(w.category, (UndefinedMetricWarning, RuntimeWarning)) or "No positive class" in str(w.message)
        for w in said
    )
    return math.nan if ill else float(value)


@pytest.mark.parametrize("name", BINARY)
def test_binary_numbers_are_scikit_learns_or_undefined(script, name):
    for client in (*script.CLIENTS["Binary"], script.WHOLE["Binary"]):
        p = client.outputs.sigmoid().numpy().ravel()
        y = client.targets.numpy().ravel().astype(int)
        wanted = defined(lambda y=y, p=p: BINARY[name](y, p, (p > 0.5).astype(int)))
        found = script.here(getattr(of_classes, f"Binary{name}"), client)
        assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True), client.name


def cases():
    """Clients with all classes, with some of them, with one, and with one sample; every class may be predicted."""
    g = torch.Generator().manual_seed(3)
    for number, classes in enumerate(([0, 1, 2], [0, 2], [1, 2], [1])):
        targets = torch.tensor(classes)[torch.randint(len(classes), (12,), generator=g)]
        yield torch.randn(12, 3, generator=g), targets
        yield torch.randn(1, 3, generator=g), targets[:1]
        if number == 3:
            yield torch.eye(3)[targets] * 5, targets  # all right


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
def test_means_over_classes_leave_out_undefined_ones(script, name):
    for outputs, targets in cases():
        p, y = outputs.softmax(1).numpy(), targets.numpy()
        if name in ("AUROC", "AveragePrecision"):
            wanted = SEVERAL[name](y, p, p.argmax(1))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = float(SEVERAL[name](y, p, p.argmax(1)))
        client = script.Client("", Classification(), outputs, targets)
        found = script.here(getattr(of_classes, f"Multiclass{name}"), client)
        assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True), (name, y)


@pytest.mark.parametrize("name", [*LABELS, *WHOLE_LABELS])
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
def test_numbers_of_labels_are_scikit_learns_or_undefined(script, name):
    for client in (*script.CLIENTS["Multilabel"], script.WHOLE["Multilabel"]):
        p, y = client.outputs.sigmoid().numpy(), client.targets.numpy().astype(int)
        g = (p > 0.5).astype(int)
        if name in LABELS:
            of_labels = zip(y.T, p.T, g.T, strict=True)
            wanted = np.nanmean([defined(lambda one=one: BINARY[name](*one)) for one in of_labels])
        else:
            wanted = defined(lambda y=y, p=p, g=g: WHOLE_LABELS[name](y, p, g))
        found = script.here(getattr(of_classes, f"Multilabel{name}"), client)
        assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True), client.name


def test_weighted_means_weigh_the_defined_classes_by_their_samples():
    for outputs, targets in cases():
        metric = ClientMetric(of_classes.MulticlassPrecision(3, average="weighted"))
        metric.update(Classification(), outputs, targets)
        options = {"average": None, "labels": [0, 1, 2], "zero_division": np.nan}
        each, often = sk.precision_score(targets, outputs.argmax(1), **options), np.bincount(targets, minlength=3)
        used = ~np.isnan(each) & (often > 0)
        wanted = np.average(each[used], weights=often[used]) if used.any() else math.nan
        assert float(metric.compute()) == pytest.approx(float(wanted), abs=1e-6, nan_ok=True)


NUMBERS = {
    "R2Score": lambda y, o: sk.r2_score(y, o, force_finite=False),
    "ExplainedVariance": lambda y, o: sk.explained_variance_score(y, o, force_finite=False),
    "RelativeSquaredError": lambda y, o: 1 - sk.r2_score(y, o, force_finite=False),
    "MeanAbsoluteError": sk.mean_absolute_error,
    "MeanSquaredError": sk.mean_squared_error,
    "MeanAbsolutePercentageError": lambda y, o: np.abs((y - o) / y).mean(),
    "PearsonCorrCoef": lambda y, o: scipy.stats.pearsonr(y, o).statistic,
    "SpearmanCorrCoef": lambda y, o: scipy.stats.spearmanr(y, o).statistic,
    "KendallRankCorrCoef": lambda y, o: scipy.stats.kendalltau(y, o).statistic,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_regressions_are_scikit_learns_or_undefined(script, name):
    for client in (*script.CLIENTS[""], script.WHOLE[""]):
        y, o = client.targets.double().numpy().ravel(), client.outputs.double().numpy().ravel()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wanted = float(NUMBERS[name](y, o))
            except ValueError:  # scipy refuses one sample
                wanted = math.nan
        wanted = wanted if math.isfinite(wanted) else math.nan
        found = script.here(getattr(torchmetrics.regression, name), client)
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5, nan_ok=True), client.name


# --- a limit, for classes without a counterpart ---------------------------------------------------------------------
MANY = 1000


def with_one_more(script, cls, client, score, target):
    """The number on a thousand copies of the client's samples and one more."""
    outputs = torch.cat([client.outputs.repeat(MANY, 1), torch.full((1, 1), score)])
    targets = torch.cat([client.targets.repeat(MANY, 1), torch.full((1, 1), float(target))])
    value = script.by_torchmetrics(cls, script.Client("", client.task, outputs, targets))
    return value if isinstance(value, float) else math.nan


def test_a_binary_number_that_one_sample_decides_is_undefined(script):
    """A formula that has a value is continuous: one sample more, right or wrong, hardly changes it."""
    for prefix, name, cls in script.classes():
        if prefix != "Binary" or name in ("LogAUC", "EER") or script.refusal(prefix, cls):
            continue
        for client in script.CLIENTS["Binary"]:
            more = [with_one_more(script, cls, client, score, y) for score in (-9.0, 9.0) for y in (0, 1)]
            found = script.here(cls, client)
            if name == "MatthewsCorrCoef":  # its value is a root: 1 / sqrt(4000) is as near as it gets
                assert math.isnan(found)
            elif max(more) - min(more) > 0.1:
                assert math.isnan(found), (name, client.name)
            else:
                assert found == pytest.approx(np.mean(more), abs=0.05), (name, client.name)


# --- a user's own metric, and errors --------------------------------------------------------------------------------
class Says(torchmetrics.Metric):
    """Is undefined without a sample of class 1, in one of two ways, or raises an error."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.add_state("ones", torch.tensor(0))

    def update(self, scores, labels):
        self.ones += (labels == 1).sum()

    def compute(self):
        if self.ones:
            return self.ones
        if self.how == "raises":
            raise ValueError("no sample of class 1.")
        return torch.tensor(math.nan if self.how == "nan" else 7.0)


class Declares(Says):
    def is_undefined(self):
        return self.ones == 0


@pytest.mark.parametrize("metric", [Says("nan"), Declares("number"), Says("raises")], ids=["nan", "declared", "raises"])
def test_a_users_own_metric_says_that_it_is_undefined(metric):
    found = ClientMetric(metric)
    for targets, wanted in (([0, 0], math.nan), ([0, 1], 1.0), ([0, 2], math.nan)):
        found.reset()
        found.update(Classification(), torch.zeros(2, 3), torch.tensor(targets))
        assert float(found.compute()) == pytest.approx(wanted, nan_ok=True)
        assert found.failure == ("no sample of class 1" if metric.how == "raises" and math.isnan(wanted) else "")


def test_a_subclass_that_computes_something_else_has_its_own_mathematics():
    class Share(of_classes.BinaryRecall):
        def compute(self):
            return self.tp / (self.tp + self.fp + self.tn + self.fn)

    metric = ClientMetric(Share())
    metric.update(MultiLabel(), torch.ones(4, 1), torch.zeros(4, 1))
    assert float(metric.compute()) == 0
    assert kind_of(type("Same", (of_classes.BinaryRecall,), {})) is KINDS[of_classes.BinaryRecall]


def test_an_answer_to_0_by_0_is_obeyed():
    metric = ClientMetric(of_classes.BinaryF1Score(zero_division=1))
    metric.update(MultiLabel(), -torch.ones(4, 1), torch.zeros(4, 1))
    assert float(metric.compute()) == 1


def test_out_of_memory_is_no_property_of_a_client():
    metric = Says("nan")
    metric.update = None
    found = ClientMetric(copy.deepcopy(metric))
    found.metric.update = lambda *given: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        found.update(Regression(), torch.zeros(2, 1), torch.zeros(2, 1))
