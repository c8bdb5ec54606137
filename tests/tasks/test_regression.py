"""Regression: numbers as scikit-learn computes them, engines as plain loops, and what is refused."""

import math
from itertools import pairwise

import numpy as np
import pytest
import sklearn.metrics
import torch
from banks import _data, _module, make_federation, trained_plainly
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop import scratch
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.tasks import Classification, Regression

SIZES = (5, 1, 9, 4)
SCALE = (3.0, 0.5)


def two_numbers():
    """Clients of unequal size whose targets are two numbers; those of one client are all alike in the second column."""
    found = _data(SIZES, (6,))
    g = torch.Generator().manual_seed(4)
    found.labels = torch.randn(len(found.images), 2, generator=g, dtype=torch.float64) + 7
    found.labels[found.train[3]] = torch.tensor([1.5, -2.5], dtype=torch.float64)
    found.num_classes = 0
    return found


def by_sklearn(outputs, targets):
    """Root mean squared error, mean absolute error and explained share, in the original unit."""
    scale = np.array(SCALE)
    y, guess = targets.numpy() * scale, outputs.numpy() * scale
    rmse, mae = math.sqrt(sklearn.metrics.mean_squared_error(y, guess)), sklearn.metrics.mean_absolute_error(y, guess)
    return rmse, mae, float(r2_of(y, guess))


def r2_of(y, guess):
    deviations = ((y - y.mean(0)) ** 2).sum()
    if deviations < 1e-20:
        return math.nan
    return sklearn.metrics.r2_score(y, guess, multioutput="variance_weighted")


@pytest.mark.parametrize("own_loss", [None, nn.L1Loss()], ids=["task's loss", "custom loss"])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_predictions_agree_with_plain_loops_and_scikit_learn(engine, own_loss, monkeypatch):
    """Clients of unequal size, the last batch of an epoch smaller, a global test set in pieces, clipped gradients."""
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 4)
    monkeypatch.setattr(scratch, "EVALUATION_BATCH", 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    clients = two_numbers()
    task = Regression().of_targets(clients.labels, SCALE)
    loss, mean = own_loss or task.mean_loss(), own_loss or nn.MSELoss()
    f = make_federation(network=network, data=clients, engine=engine, servers=1, loss=loss, task=task, clip_norm=0.5)
    training = f.training()
    trained = f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        row, mean_loss = trained_plainly(f, training, client, mean)
        assert torch.allclose(f.bank.rows("trained")[client], row, rtol=0, atol=1e-9)
        assert float(trained.losses[client]) == pytest.approx(mean_loss, rel=1e-12)
    owners = torch.tensor([0, 1, 2, 3, -1])
    found = f.engine.evaluate(References.rows("models", torch.tensor([1, 0, 3, 2, 4]), owners=owners), "train")
    assert list(found.metrics) == ["rmse", "mae", "r2"]
    for job, (row, owner) in enumerate(zip([1, 0, 3, 2, 4], owners.tolist(), strict=True)):
        samples = f.data.global_test if owner < 0 else f.data.train[owner]
        x, y = f.data.batch(samples, dtype=torch.float64)
        with torch.no_grad():
            outputs = _module(f.network, f.bank.rows("models")[row])(x)
        assert float(found.losses[job]) == pytest.approx(float(mean(outputs, y)), rel=1e-12)
        assert [float(v[job]) for v in found.metrics.values()] == pytest.approx(
            by_sklearn(outputs, y), rel=1e-9, nan_ok=True
        )


def test_r2_of_constant_targets_is_undefined():
    task = Regression()
    for outputs in ([1e8, 1e8], [1e8, 1e8 + 1]):
        statistics = task.statistics(
            torch.tensor(outputs, dtype=torch.float64)[:, None], torch.full((2, 1), 1e8).double()
        )
        assert math.isnan(task.finish({name: v.mean() for name, v in statistics.items()})["r2"])


def numbers_of(clients=4, columns=1, **options):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, generator=g)
    y = x @ torch.rand(5, columns, generator=g) + 3
    return data.FromDataset(TensorDataset(x, y.squeeze(1)), num_clients=clients, **options)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_merged_errors_are_those_of_all_samples(engine):
    datamodule = numbers_of(partition=data.Dirichlet(0.3, flavour="per_class"))
    module = DFLModule(models.MLP(hidden=[4]), local_epochs=1, batch_size=8)
    policies = [callbacks.Gossip(k=1), callbacks.MergedModel()]
    trainer = DFLTrainer(max_rounds=2, engine=engine, callbacks=policies, logger=False, enable_progress_bar=False)
    trainer.fit(module, datamodule=datamodule)
    assert (type(module.federation.task).__name__, module.federation.task.score) == ("Regression", "rmse")
    row = module.bank.rows("models").cpu().double().mean(0)
    model, test = _module(module.network.double(), row), torch.cat(list(module.federation.data.test))
    x, y = module.federation.data.to("cpu").batch(test, dtype=torch.float64)
    errors = (model(x) - y).detach()
    assert module.bank.boundary.metrics["merged_test_rmse"] == pytest.approx(
        float(errors.square().mean().sqrt()), rel=1e-5
    )
    assert module.bank.boundary.metrics["merged_test_loss"] == pytest.approx(float(errors.square().mean()), rel=1e-5)


def test_partitions_stratify_by_intervals_of_the_targets():
    datamodule = numbers_of(partition=data.Shards(per_client=1), test_fraction=0)
    datamodule.setup()
    ranks = datamodule.source.labels.flatten().argsort().argsort()
    assert torch.equal(datamodule.source.strata_of[0], ranks // 6)
    tenths = sorted((ranks[part] // 6).tolist() for part in datamodule.clients.train)
    assert all(max(one) <= min(next_one) for one, next_one in pairwise(tenths))


class OneAnswer(nn.Module):
    """A network that answers [B] instead of [B, 1], which would broadcast over all targets of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def fit(datamodule=None, network=None, policies=(), **options):
    trainer = DFLTrainer(max_rounds=1, callbacks=list(policies), logger=False, enable_progress_bar=False)
    module = DFLModule(network or models.MLP(hidden=[4]), local_epochs=1, **options)
    trainer.fit(module, datamodule=datamodule or numbers_of())


WRONG = {
    "classes from numbers": (
        lambda: fit(task=Classification()),
        r"model\.task Classification needs targets that are classes, but those of the data are float32 numbers",
    ),
    "numbers from classes": (
        lambda: fit(data.Digits(num_clients=4), task=Regression()),
        r"model\.task Regression needs targets that are floating-point numbers .* are classes \[1797\]",
    ),
    "output": (
        lambda: fit(network=OneAnswer()),
        r"OneAnswer returns \(\) for an input; for model\.task Regression on these data it must return \[B, 1\]",
    ),
    "columns": (lambda: fit(task=Regression((1.0, 2.0))), "scale has 2 numbers, but targets have 1 columns"),
    "scale": (lambda: Regression((0.0,)), r"scale=\[0\.0\]; give a number above 0 for each column"),
    "prediction": (
        lambda: fit(policies=[callbacks.KNN()]),
        "prediction KNN needs classes, but model.task Regression has none; use another prediction",
    ),
    "selection": (
        lambda: fit(policies=[callbacks.PACFL()]),
        "selection PACFL needs classes, but model.task Regression",
    ),
    "flipped": (
        lambda: fit(numbers_of(partition=data.FlippedLabels())),
        r"data\.partition FlippedLabels\(40% of IID\) renames classes, and TensorDataset has none",
    ),
    "too many parts of a range": (
        lambda: fit(numbers_of(partition=data.Pathological(classes=11))),
        r"11 classes a client, but the data have 10; lower classes; classes are here 10 ranges of the target with "
        r"equally many samples$",
    ),
    "rotated": (lambda: fit(numbers_of(partition=data.RotatedClusters())), r"only images \[C, H, W\] can be rotated"),
    "augmented": (
        lambda: fit(numbers_of(augment=True)),
        r"data\.augment: true crops and flips images \[C, H, W\], but",
    ),
    "a loss for classes": (
        lambda: fit(loss=nn.NLLLoss()),
        r"model\.loss NLLLoss fails on outputs \[2, 1\] and targets \[2, 1\]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_settings_that_need_classes_are_refused_before_training(what):
    wrong, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        wrong()
    assert "\n" not in str(caught.value)
