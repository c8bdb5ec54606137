"""Habits of Lightning's users: options of a trainer, evaluations after a fit, the best models, progress bars."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import AsyncCheckpointIO

from dfl_lightning import DFLTrainer
from dfl_lightning.engines import engine
from dfl_lightning.engines.cohorts import plan_cohorts
from dfl_lightning.terminal import framing
from dfl_lightning.trainer_options import NO_EFFECT, OBEYED, OPTIONS, REFUSED
from dfl_lightning.utils.errors import UserError

SIGNATURE = inspect.signature(Trainer.__init__).parameters


# --- options
def test_every_option_of_this_lightning_is_in_the_table():
    assert set(OPTIONS) == set(SIGNATURE) - {"self"}, "a new option of Lightning: obey or refuse it, and say so"
    assert {treatment.kind for treatment in OPTIONS.values()} == {OBEYED, REFUSED, NO_EFFECT}


def test_the_page_has_the_table_of_options():
    page = (Path(__file__).parents[1] / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (obeyed|refused|no effect) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(name, treatment.kind, treatment.about) for name, treatment in OPTIONS.items()]


@pytest.mark.parametrize("name", [name for name in OPTIONS if OPTIONS[name].kind != OBEYED])
def test_lightnings_own_default_is_accepted(name):
    DFLTrainer(accelerator="cpu", **{name: SIGNATURE[name].default})


@pytest.mark.parametrize("name", [name for name in OPTIONS if OPTIONS[name].kind == REFUSED])
def test_other_values_are_refused_with_the_remedy(name):
    for value in (2, 3.5):
        with pytest.raises(UserError) as refused:
            DFLTrainer(accelerator="cpu", **{name: value})
        assert str(refused.value) == f"trainer.{name}={value} has no meaning for communication rounds; " + (
            OPTIONS[name].about
        )


def test_early_stopping_respects_the_least_number_of_rounds(small_run):
    stop = {"monitor": "train_loss", "stopping_threshold": 1e9}  # which would end the run after its first round
    assert small_run(4, [EarlyStopping(**stop)]).fit().module.bank.boundary.round == 1
    assert small_run(4, [EarlyStopping(**stop)], min_epochs=3).fit().module.bank.boundary.round == 3


def test_an_anomaly_ends_the_run_with_a_sentence(small_run):
    broken = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e30), "lr_scheduler": None}
    small_run(2, module=broken)  # without the search a client that diverges is quarantined
    with (
        pytest.warns(UserWarning, match="Error detected in"),
        pytest.raises(UserError, match=r"trainer.detect_anomaly: Function '\w+' returned nan values"),
    ):
        small_run(2, module=broken, detect_anomaly=True, engine="loop").fit()


def test_loggers_get_hyperparameters_unless_switched_off(small_run, tmp_path):
    for wanted in (True, False):
        logger = CSVLogger(tmp_path, name=str(wanted))
        small_run(1, logger=logger, enable_autolog_hparams=wanted).fit()
        written = Path(logger.log_dir) / "hparams.yaml"
        assert (written.is_file() and "batch_size" in written.read_text()) == wanted


def test_own_checkpoint_files_are_written(small_run, tmp_path):
    plugin = AsyncCheckpointIO()
    run = small_run(1, plugins=[plugin]).fit()
    assert run.trainer.strategy.checkpoint_io is plugin
    assert (run.folder / "checkpoints" / "last.ckpt").is_file()


# --- evaluations after a fit
@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Fit a run whose best validation loss is that of an early round."""
    from tests.helpers.small_run import SmallRun

    policies = None
    keep = ModelCheckpoint(monitor="val_loss", mode="min")
    rising = {"lr_scheduler": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda round: [1, 1, 60, 60][round])}
    return SmallRun(tmp_path_factory.mktemp("runs"), 4, [keep], policies, module=rising).fit()


def means_of(run, round):
    clients = run.trainer.run.clients
    at = clients["rounds"].tolist().index(round)
    return {name: clients[name][at].mean() for name in ("val_loss", "test_acc")}


def test_the_best_models_are_evaluated_again_and_again(fitted, capsys):
    losses = fitted.trainer.run.metrics["val_loss"]
    best = int(losses.argmin())
    assert best < 3, losses
    for method in (fitted.trainer.test, fitted.trainer.validate, fitted.trainer.test):
        for how in ({"ckpt_path": "best"}, {}):
            (means,) = method(**how, verbose=False)  # the module and the data are those of the fit
            expected = means_of(fitted, best)
            assert means["val_loss"] == pytest.approx(expected["val_loss"])
            assert means["test_acc"] == pytest.approx(expected["test_acc"])
            assert ("the best models of the last fit are evaluated" in capsys.readouterr().out) == (how == {})
    assert fitted.trainer.checkpoint_callback.best_model_path.endswith(f"epoch={best}-step={best + 1}.ckpt")


def test_last_and_present_models_are_those_of_the_last_round(fitted):
    (last,) = fitted.trainer.test(ckpt_path="last", verbose=False)
    (present,) = fitted.trainer.test(fitted.module, verbose=False)
    (positional,) = fitted.trainer.test(fitted.module, fitted.data, verbose=False)
    assert last == present == positional
    assert last["val_loss"] == pytest.approx(means_of(fitted, 3)["val_loss"])


def test_last_needs_no_checkpoint_callback_of_lightning(small_run):
    run = small_run(2).fit()
    (means,) = run.trainer.test(small_run(2).module, run.data, "last", verbose=False)
    assert means["test_acc"] == pytest.approx(run.trainer.run.metrics["test_acc"][-1])


def test_a_fit_takes_the_datamodule_as_its_second_argument(small_run):
    run = small_run(1)
    run.trainer.fit(run.module, run.data)
    assert run.module.bank.boundary.round == 1


def test_methods_have_the_parameters_of_this_lightning(fitted):
    for name in ("fit", "validate", "test"):
        theirs = list(inspect.signature(getattr(Trainer, name)).parameters)
        assert list(inspect.signature(getattr(DFLTrainer, name)).parameters)[: len(theirs)] == theirs
    fitted.trainer.test(ckpt_path="last", verbose=False, weights_only=True)
    for method in (fitted.trainer.fit, fitted.trainer.validate, fitted.trainer.test):
        with pytest.raises(UserError, match="weights_only=False would run code"):
            method(fitted.module, datamodule=fitted.data, weights_only=False)


def test_predict_says_what_to_do(fitted):
    with pytest.raises(UserError, match=r"trainer\.run\.model\(client, network\)"):
        fitted.trainer.predict(fitted.module, datamodule=fitted.data)


# --- progress bars
@pytest.mark.parametrize("bar", [RichProgressBar, TQDMProgressBar])
def test_banner_and_result_are_printed_with_bars_of_lightning(bar, small_run, capsys):
    run = small_run(2, [bar()], enable_progress_bar=True).fit()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("AFIND + AdaptiveThreshold")
    assert lines[1].startswith("objective Plain · SGD (lr 0.1")
    assert f"run: {run.folder}" in lines
    assert f"its page: dfl-report {run.folder}" in lines
    assert any(line.startswith("test accuracy") for line in lines)
    assert sum("objective Plain" in line for line in lines) == 1
    assert "callbacks: null" in (run.folder / "config.yaml").read_text()


def test_a_large_network_is_announced_before_it_is_set_up(small_run, capsys, monkeypatch):
    monkeypatch.setattr(framing, "LARGE", 610)  # the parameters of the small run
    printed = []

    def plan(*args, **options):
        printed.append(capsys.readouterr().out)
        return plan_cohorts(*args, **options)

    monkeypatch.setattr(engine, "plan_cohorts", plan)
    run = small_run(1, enable_progress_bar=True).fit()
    assert printed[0] == "setting up MLP (610 parameters each): a large network takes a while\n"
    assert capsys.readouterr().out.startswith("AFIND + AdaptiveThreshold")
    small_run(1, enable_progress_bar=True).trainer.prepare(run.module, run.data)
    assert "setting up" not in capsys.readouterr().out
    monkeypatch.setattr(framing, "LARGE", 611)
    small_run(1, enable_progress_bar=True).fit()
    assert "setting up" not in printed[-1] + capsys.readouterr().out
