"""The columns of metrics, and the sentences about those that do not fit."""

import re

import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryCalibrationError,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassROC,
    MultilabelF1Score,
)
from torchmetrics.regression import KLDivergence, PearsonCorrCoef

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.metrics import ECE, columns_of


class F1Score(MulticlassF1Score):
    pass


class Named(MulticlassF1Score):
    column = "of_mine"


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        ([MulticlassAUROC(3), BinaryAUROC(), KLDivergence()], ["auroc", "binary_auroc", "kl_divergence"]),
        (["auroc", MulticlassAUROC(3)], ["auroc", "multiclass_auroc"]),
        (
            [MulticlassF1Score(3, average=average) for average in ("macro", "micro")],
            ["f1_score_macro", "f1_score_micro"],
        ),
        ([MulticlassAccuracy(3, top_k=1), MulticlassAccuracy(3, top_k=2)], ["accuracy_top_k_1", "accuracy_top_k_2"]),
        ([F1Score(3), MulticlassF1Score(3)], ["f1_score", "multiclass_f1_score"]),
        ([ECE(10), ECE(20), Named(3)], ["ece_bins_10", "ece_bins_20", "of_mine"]),
    ],
)
def test_every_metric_has_a_column_of_its_own(metrics, names):
    assert list(columns_of(metrics)) == names
    assert list(columns_of(metrics).values())[1:] == [m for m in metrics if not isinstance(m, str)][-len(names) + 1 :]


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ([MulticlassAUROC(3), MulticlassAUROC(3)], "2 times MulticlassAUROC, and both would have the column 'auroc'"),
        (["ece", "ece"], "2 times ECE, and both would have the column 'ece'"),
        (["acuroc"], "there is no 'acuroc'; did you mean 'auroc'? (those with a name are auroc, average_precision"),
        (
            [torchmetrics.MetricCollection([MulticlassAUROC(3)])],
            "MetricCollection has several columns; list its metrics",
        ),
        (
            torchmetrics.MetricCollection([MulticlassAUROC(3)]),
            "takes a list of metrics, not a MetricCollection; list them",
        ),
        ([MulticlassAUROC], "make an object of it, MulticlassAUROC(…)"),
        ([torch.nn.L1Loss()], "L1Loss() is not a torchmetrics.Metric; give one of torchmetrics"),
    ],
)
def test_metrics_of_one_column_are_refused(metrics, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        columns_of(metrics)


def fails(metrics, targets, outputs):
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    samples = data.FromDataset(TensorDataset(x, targets(x)), num_clients=4, partition=data.IID())
    module = DFLModule(nn.Linear(3, outputs), metrics=metrics)
    with pytest.raises(UserError) as error:
        DFLTrainer(callbacks=[callbacks.Gossip(k=0)], accelerator="cpu").prepare(module, samples)
    return str(error.value)


def classes(x):
    return (x[:, 0] > 0.5).long()


def labels(x):
    return x[:, :2] > 0.5


def two_numbers(x):
    return x[:, :2]


class Acc(torchmetrics.Metric):
    def update(self, scores, labels):
        pass

    def compute(self):
        return torch.tensor(0.0)


@pytest.mark.parametrize(
    ("metric", "targets", "sentence"),
    [
        (BinaryAUROC(), classes, "returns 2, one of each class; take MulticlassAUROC with num_classes: 2 or auroc"),
        (BinaryCalibrationError(), classes, "take MulticlassCalibrationError with num_classes: 2 or ece"),
        (MulticlassAUROC(3), classes, "has num_classes=3, but the network returns 2 scores; set num_classes: 2"),
        (MultilabelF1Score(2), classes, "take MulticlassF1Score with num_classes: 2 or f1_macro"),
        (MulticlassF1Score(2), labels, "take MultilabelF1Score with num_labels: 2 or f1_macro"),
        (
            MulticlassConfusionMatrix(2),
            classes,
            "returns [2, 2] numbers, and a column has one of each client; take Mult",
        ),
        (
            MulticlassROC(2),
            classes,
            "returns a tuple, and a column has one of each client; take MulticlassAUROC or auroc",
        ),
        (
            MulticlassPrecision(2, average=None),
            classes,
            "returns [2] numbers, and a column has one of each client; set a",
        ),
        (Acc(), classes, "would have the column 'acc', which model.task Classification reports already"),
        ("auroc", two_numbers, "auroc is for classes or labels, which model.task Regression does not have"),
        ("ece", labels, "ece is for classes, and model.task MultiLabel has labels; leave it out"),
        (MulticlassF1Score(2), two_numbers, "has numbers; take one of torchmetrics.regression"),
        (
            PearsonCorrCoef(),
            two_numbers,
            "is for one number of each sample, and the targets have 2 columns; take torchm",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torchmetrics.Metric) else None,
)
def test_a_refused_metric_is_answered_by_the_class_to_take(metric, targets, sentence):
    assert sentence in fails([metric], targets, 2)


def test_the_network_may_be_of_the_library():
    module = DFLModule(models.MLP(hidden=[4]), metrics=["auroc", "ece"])
    assert list(module.metrics) == ["auroc", "ece"]
