"""Several labels: numbers as scikit-learn computes them, engines as plain loops, and what is refused."""

import functools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from banks import _data, _module, make_federation, trained_plainly
from sklearn.datasets import make_multilabel_classification
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MultilabelF1Score

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop import scratch
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.tasks import MultiLabel, default_task

SIZES, LABELS = (5, 1, 9, 4), 3


def three_labels():
    """Clients of unequal size; one of them has no label at all."""
    found = _data(SIZES, (6,))
    g = torch.Generator().manual_seed(4)
    found.labels = torch.rand(len(found.images), LABELS, generator=g) < 0.4
    found.labels[found.train[3]] = False
    found.num_classes = 0
    return found


def by_sklearn(outputs, targets):
    """Micro-F1, label and subset accuracy."""
    y, guess = targets.numpy().astype(int), (outputs.numpy() > 0).astype(int)
    f1 = sklearn.metrics.f1_score(y, guess, average="micro", zero_division=np.nan)
    return f1, 1 - sklearn.metrics.hamming_loss(y, guess), sklearn.metrics.accuracy_score(y, guess)


@pytest.mark.parametrize(
    "own_loss", [None, nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]))], ids=["task's loss", "weighted"]
)
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_labels_agree_with_plain_loops_and_scikit_learn(engine, own_loss, monkeypatch):
    """Clients of unequal size, the last batch of an epoch smaller, a global test set in pieces, clipped gradients."""
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 4)
    monkeypatch.setattr(scratch, "EVALUATION_BATCH", 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, LABELS))
    task, metric = MultiLabel(), MultilabelF1Score(LABELS, average="micro")
    loss, mean = own_loss or task.mean_loss(), own_loss or nn.BCEWithLogitsLoss()
    f = make_federation(
        network=network,
        data=three_labels(),
        engine=engine,
        servers=1,
        loss=loss,
        task=task,
        clip_norm=0.5,
        metrics={"by_torchmetrics": metric},
    )
    training = f.training()
    trained = f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        row, mean_loss = trained_plainly(f, training, client, mean)
        assert torch.allclose(f.bank.rows("trained")[client], row, rtol=0, atol=1e-9)
        assert float(trained.losses[client]) == pytest.approx(mean_loss, rel=1e-9)
    owners = torch.tensor([0, 1, 2, 3, -1])
    found = f.engine.evaluate(References.rows("models", torch.tensor([1, 0, 3, 2, 4]), owners=owners), "train")
    assert list(found.metrics) == ["micro_f1", "label_acc", "subset_acc", "by_torchmetrics"]
    for job, (row, owner) in enumerate(zip([1, 0, 3, 2, 4], owners.tolist(), strict=True)):
        samples = f.data.global_test if owner < 0 else f.data.train[owner]
        x, y = f.data.batch(samples, dtype=torch.float64)
        with torch.no_grad():
            outputs = _module(f.network, f.bank.rows("models")[row])(x)
        wanted = by_sklearn(outputs, y)
        assert float(found.losses[job]) == pytest.approx(float(mean(outputs, y)), rel=1e-9)
        assert [float(v[job]) for v in found.metrics.values()] == pytest.approx([*wanted, wanted[0]], rel=1e-6)


def test_nonfinite_logits_are_wrong_and_empty_labels_have_no_f1():
    task = MultiLabel()
    outputs = torch.tensor([[torch.nan, -1.0], [torch.nan, 2.0]])
    targets = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    means = {name: v.double().mean() for name, v in task.statistics(outputs, targets).items()}
    assert [float(v) for v in task.finish(means).values()] == pytest.approx([0.5, 0.5, 0.0])
    nothing = {name: v.double().mean() for name, v in task.statistics(-torch.ones(2, 2), torch.zeros(2, 2)).items()}
    assert [float(v) for v in task.finish(nothing).values()] == pytest.approx([math.nan, 1.0, 1.0], nan_ok=True)


def test_the_synthetic_table_is_stratified_by_the_rarest_label(tmp_path):
    table = data.Vectors(table="synthetic_labels", num_clients=6, partition=data.Shards(1), test_fraction=0.0)
    table.setup()
    _, y = make_multilabel_classification(1200, 20, n_classes=6, n_labels=2, length=40, random_state=0)
    often = y.sum(0)
    rarest = [min(np.flatnonzero(row), key=lambda label: often[label], default=6) for row in y]
    assert table.source.strata_of[0].tolist() == rarest
    assert table.source.labels.tolist() == (y == 1).tolist()
    assert table.describe().startswith("synthetic labels, ")
    assert type(default_task(table.source.labels, 0)) is MultiLabel
    module = DFLModule(
        models.MLP(hidden=[16]), batch_size=16, optimizer=functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)
    )
    options = {"default_root_dir": tmp_path, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = DFLTrainer(max_rounds=3, callbacks=[callbacks.Gossip(k=2), callbacks.Uniform()], **options)
    trainer.fit(module, datamodule=data.Vectors(table="synthetic_labels", num_clients=6))
    assert trainer.run.summary["task"] == {
        **{"name": "MultiLabel", "score": "micro_f1"},
        **{"higher_is_better": True, "percent": True},
    }
    f1 = trainer.run.metrics["test_micro_f1"]
    assert f1[0] < f1[-1] > 0.5
    assert trainer.run.summary["engine"]["name"] == "stacked"


def of_floats():
    pairs = TensorDataset(torch.rand(40, 5), (torch.rand(40, 2) > 0.5).float())
    module = DFLModule(models.MLP(hidden=[4]), task=MultiLabel())
    trainer = DFLTrainer(
        max_rounds=1, callbacks=[callbacks.Gossip(k=1), callbacks.Uniform()], logger=False, enable_progress_bar=False
    )
    trainer.fit(module, datamodule=data.FromDataset(pairs, num_clients=2))


def test_labels_of_a_users_data_set_must_be_bool():
    found = data.FromDataset(TensorDataset(torch.rand(8, 5), torch.rand(8, 2) > 0.5), num_clients=2)
    found.setup()
    assert found.source.labels.dtype == torch.bool
    with pytest.raises(UserError, match=r"MultiLabel needs targets that are labels, bool \[N, L\].* are float32 \["):
        of_floats()
