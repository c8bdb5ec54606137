"""Fits one after the other in a process: what is used again has the numbers of what is new."""

import copy
import csv
import gc
import weakref

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as cb
from dfl_lightning.data import Digits, RotatedClusters
from dfl_lightning.models import MLP

METHODS = {
    "Local": lambda: [cb.Gossip(k=0)],
    "Gossip": lambda: [cb.Gossip(k=3)],
    "AFIND+": lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()],
}


def module(**options):
    return DFLModule(MLP(hidden=[8]), local_epochs=1, **options)


def digits(**options):
    given = {"num_clients": 6, "samples_per_client": 30, "val_fraction": 0.2, "partition": RotatedClusters([0, 90])}
    return Digits(**{**given, **options})


@pytest.fixture
def fit(tmp_path):
    """Fit a module by a new trainer, and return the trainer."""

    def fit(module, data, callbacks, rounds=3, **options):
        fixed = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False}
        trainer = DFLTrainer(max_rounds=rounds, callbacks=callbacks, default_root_dir=tmp_path, **fixed, **options)
        trainer.fit(module, datamodule=data)
        return trainer

    return fit


def numbers(trainer):
    """All columns of metrics.csv but the seconds, and the models."""
    with open(trainer.run.path / "metrics.csv", newline="") as file:
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    return rows, trainer.lightning_module.bank.boundary.rows["models"]


def same(one, other):
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The numbers of each method with new objects."""
    found = {}
    for name, policies in METHODS.items():
        seed_everything(0, verbose=False)
        root = tmp_path_factory.mktemp("alone")
        fixed = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False}
        trainer = DFLTrainer(max_rounds=3, callbacks=policies(), default_root_dir=root, **fixed)
        trainer.fit(module(), datamodule=digits())
        found[name] = numbers(trainer)
    return found


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_loop_over_methods_with_one_module_compares_the_methods(fit, alone, engine):
    seed_everything(0, verbose=False)
    one, data = module(), digits()
    for name, policies in METHODS.items():
        trainer = fit(one, data, policies(), engine=engine)
        rows, models = numbers(trainer)
        assert [row["round"] for row in rows] == ["0", "1", "2"]
        assert torch.allclose(models, alone[name][1], atol=0.0 if engine == "stacked" else 1e-5)
        assert rows[-1]["test_acc"] == alone[name][0][-1]["test_acc"]
        assert any("this fit begins at round 0" in remark for remark in trainer.remarks) == (name != "Local")


def test_policies_are_used_again_by_another_trainer(fit, alone):
    seed_everything(0, verbose=False)
    policies = METHODS["AFIND+"]()
    fit(module(), digits(num_clients=5), policies, rounds=2)
    same(numbers(fit(module(), digits(), policies)), alone["AFIND+"])


def test_assignments_between_two_fits_count(fit):
    policy = cb.Gossip(k=0)
    assert fit(module(), digits(), [policy], rounds=1).run.metrics["models_received"][0] == 0
    policy.k = 2
    assert fit(module(), digits(), [policy], rounds=1).run.metrics["models_received"][0] == 2


def test_early_stopping_does_not_remember_another_fit(fit):
    stopping = EarlyStopping("val_loss", patience=1, mode="min")
    one = [fit(module(), digits(), [cb.Gossip(), stopping], rounds=3) for _ in range(2)]
    assert stopping.best_score == pytest.approx(np.nanmin(one[1].run.metrics["val_loss"]))
    assert stopping.wait_count == 0
    same(numbers(one[0]), numbers(one[1]))


def test_another_seed_draws_other_first_models_and_another_split(fit):
    one, data = module(), digits()
    seed_everything(0, verbose=False)
    fit(one, data, [cb.Gossip()], rounds=1)
    seed_everything(1, verbose=False)
    again = numbers(fit(one, data, [cb.Gossip()], rounds=1))
    same(again, numbers(fit(module(), digits(), [cb.Gossip()], rounds=1)))


def test_parameters_that_were_loaded_between_two_fits_are_kept(fit):
    one = module()
    seed_everything(0, verbose=False)
    fit(one, digits(), [cb.Gossip()], rounds=1)
    with torch.no_grad():
        one.network.head.bias += 1.0
    bias = one.network.head.bias.clone()
    seed_everything(1, verbose=False)
    trainer = fit(one, digits(), [cb.Gossip()], rounds=0)
    assert torch.equal(trainer.lightning_module.network.head.bias, bias)


def test_an_option_of_the_data_that_was_changed_counts(fit):
    data = digits()
    fit(module(), data, [cb.Gossip()], rounds=1)
    data.samples_per_client = 10
    fit(module(), data, [cb.Gossip()], rounds=1)
    assert int(data.clients.sizes("train").max()) <= 10
    data.partition = RotatedClusters([0, 180])
    fit(module(), data, [cb.Gossip()], rounds=1)
    assert "180" in data.describe()


def test_the_same_trainer_continues_and_says_so(fit, alone):
    seed_everything(0, verbose=False)
    trainer = fit(module(), digits(), METHODS["Gossip"](), rounds=2)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(trainer.lightning_module, datamodule=trainer.datamodule)
    same(numbers(trainer), alone["Gossip"])
    assert trainer.remarks == ["continues the last fit of this trainer, which has done 2 rounds"]
    trainer.fit(trainer.lightning_module, datamodule=trainer.datamodule)
    assert "none is left: raise trainer.fit_loop.max_epochs" in trainer.remarks[0]


def test_a_fitted_module_is_tested_by_a_new_trainer(fit):
    trained = fit(module(), digits(), [cb.Gossip()])
    models = trained.lightning_module.bank.boundary.rows["models"].clone()
    other = DFLTrainer(callbacks=[cb.Gossip()], accelerator="cpu", enable_progress_bar=False)
    found = other.test(trained.lightning_module, datamodule=digits(), verbose=False)
    assert found[0]["test_acc"] == pytest.approx(float(trained.run.metrics["test_acc"][-1]))
    assert torch.equal(trained.lightning_module.bank.boundary.rows["models"], models)


def test_a_copy_of_a_fitted_module_begins_anew(fit, alone):
    seed_everything(0, verbose=False)
    one = fit(module(), digits(), METHODS["Local"](), rounds=1).lightning_module
    same(numbers(fit(copy.deepcopy(one), digits(), METHODS["Gossip"]())), alone["Gossip"])


def test_a_trainer_and_its_module_are_freed_after_a_fit(fit):
    trainer = fit(module(), digits(), METHODS["AFIND+"]())
    kept = [weakref.ref(trainer), weakref.ref(trainer.lightning_module), weakref.ref(trainer.datamodule)]
    del trainer
    gc.collect()
    assert [one() for one in kept] == [None, None, None]
