"""Forecasts: errors in the unit of each client, engines as plain loops, and what is refused."""

import numpy as np
import pytest
import torch
import torchmetrics
from banks import _data, _module, make_federation, trained_plainly
from torch import nn

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop import scratch
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.tasks import Forecast, Regression, default_task

SIZES, STEPS = (5, 1, 9, 4), 2


def windows():
    """Clients of unequal size; each sample's targets have a scale of their own."""
    found = _data(SIZES, (3, 8))
    g = torch.Generator().manual_seed(4)
    shape = (len(found.images), STEPS)
    found.labels = torch.stack([torch.randn(shape, generator=g), 0.5 + 9 * torch.rand(shape, generator=g)], 1).double()
    found.num_classes = 0
    return found


def by_numpy(outputs, targets):
    """Root mean squared and mean absolute error in the original unit."""
    errors = (outputs.numpy() - targets.numpy()[:, 0]) * targets.numpy()[:, 1]
    return np.sqrt(np.mean(errors**2)), np.mean(np.abs(errors))


@pytest.mark.parametrize("own_loss", [None, nn.L1Loss()], ids=["task's loss", "custom loss"])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_forecasts_agree_with_plain_loops_and_numpy(engine, own_loss, monkeypatch):
    """Clients of unequal size, the last batch of an epoch smaller, a global test set in pieces, clipped gradients."""
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 4)
    monkeypatch.setattr(scratch, "EVALUATION_BATCH", 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = models.TCN([4, 4], 2, input_shape=(3, 8), num_classes=STEPS)
    task, clients = Forecast(), windows()
    assert type(default_task(clients.labels, 0)) is Forecast
    loss, mean = task.mean_loss() if own_loss is None else task.users_loss(own_loss), own_loss or nn.MSELoss()
    f = make_federation(network=network, data=clients, engine=engine, servers=1, loss=loss, task=task, clip_norm=0.5)
    training = f.training()
    trained = f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        row, mean_loss = trained_plainly(f, training, client, lambda outputs, y: mean(outputs, y[:, 0]))
        assert torch.allclose(f.bank.rows("trained")[client], row, rtol=0, atol=1e-9)
        assert float(trained.losses[client]) == pytest.approx(mean_loss, rel=1e-12)
    owners = torch.tensor([0, 1, 2, 3, -1])
    found = f.engine.evaluate(References.rows("models", torch.tensor([1, 0, 3, 2, 4]), owners=owners), "train")
    for job, (row, owner) in enumerate(zip([1, 0, 3, 2, 4], owners.tolist(), strict=True)):
        samples = f.data.global_test if owner < 0 else f.data.train[owner]
        x, y = f.data.batch(samples, dtype=torch.float64)
        with torch.no_grad():
            outputs = _module(f.network, f.bank.rows("models")[row])(x)
        assert float(found.losses[job]) == pytest.approx(float(mean(outputs, y[:, 0])), rel=1e-12)
        assert [float(v[job]) for v in found.metrics.values()] == pytest.approx(by_numpy(outputs, y), rel=1e-12)


def fit(folder, series, policies=(), network=None, engine="auto", rounds=2, precision="64-true", **options):
    options = {"local_epochs": 1, "batch_size": 16, "optimizer": lambda p: torch.optim.SGD(p, lr=0.05), **options}
    module = DFLModule(network or models.TCN([4, 4]), **options)
    trainer = DFLTrainer(
        max_rounds=rounds,
        engine=engine,
        precision=precision,
        callbacks=list(policies or [callbacks.Gossip(k=1), callbacks.Uniform()]),
        default_root_dir=folder,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    trainer.fit(module, datamodule=series)
    return trainer, module


def test_errors_are_in_the_unit_of_each_client(tmp_path):
    """A network that says 0, the mean of the training part, whatever it sees; metrics of a user get no scales."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    nn.init.zeros_(network[1].weight), nn.init.zeros_(network[1].bias)
    series = data.Series(num_clients=5, window=12, horizon=3, test_fraction=0.25)
    metrics = [torchmetrics.MeanAbsoluteError()]
    trainer, _ = fit(
        tmp_path, series, network=network, rounds=1, optimizer=lambda p: torch.optim.SGD(p, lr=1e-30), metrics=metrics
    )
    expected = {"test_rmse": [], "test_mae": [], "test_mean_absolute_error": []}
    for client, name in enumerate(series.client_split.writers):
        values = series._read().values[series.source.writer_names.index(name)][:, 0]
        cut = len(values) - len(values) // 4
        mean, deviation = values[:cut].mean(), values[:cut].std()
        errors = [values[s + 12 : s + 15] - mean for s in range(cut, len(values) - 14)]
        assert len(errors) == len(series.clients.test[client])
        expected["test_rmse"].append(np.sqrt(np.mean(np.square(errors))))
        expected["test_mae"].append(np.mean(np.abs(errors)))
        expected["test_mean_absolute_error"].append(np.mean(np.abs(errors)) / deviation)
    for column, values in expected.items():
        assert trainer.run.metrics[column][-1] == pytest.approx(np.mean(values), rel=1e-6)
    assert trainer.run.summary["task"]["name"] == "Forecast"


def test_both_engines_run_afind_on_series_of_unequal_length_alike(tmp_path):
    rows = []
    for engine in ("loop", "stacked"):
        policies = [callbacks.AFIND(), callbacks.AdaptiveThreshold(), callbacks.Boltzmann(), callbacks.MergedModel()]
        series = data.Series(num_clients=4, stride=6, val_fraction=0.2)
        trainer, module = fit(tmp_path / engine, series, policies, engine=engine)
        assert len(set(series.clients.sizes("train").tolist())) > 1
        numbers = torch.tensor([trainer.run.metrics[f"{part}_rmse"][-1] for part in ("val", "test", "merged_test")])
        rows.append((module.bank.rows("models"), numbers))
    for one, other in zip(*rows, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_a_failing_loss_is_named_with_its_arguments():
    series = data.Series(num_clients=3)
    with pytest.raises(UserError, match=r"model\.loss NLLLoss fails on outputs \[2, 4\] and targets \[2, 4\]"):
        DFLTrainer(max_rounds=1, logger=False, enable_progress_bar=False).fit(
            DFLModule(models.TCN([4]), local_epochs=1, loss=nn.NLLLoss()), datamodule=series
        )


@pytest.mark.parametrize("targets", [torch.zeros(5), torch.zeros(5, 2), torch.zeros(5, 3, 2)])
def test_forecasts_need_targets_with_scales(targets):
    with pytest.raises(UserError, match=r"needs targets with a scale for each, .* leave model\.task out"):
        Forecast().output_shape(targets, 0)
    with pytest.raises(UserError, match="needs targets that are floating-point numbers"):
        Regression().output_shape(torch.zeros(5, 2, 2), 0)
