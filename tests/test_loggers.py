"""Lightning's loggers and checkpoints together with a run folder."""

import csv

import pytest
import yaml
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dfl_lightning.cli.command import run as command

SMALL = "--data.num_clients 6 --data.samples_per_client 40 --data.val_fraction 0.2 --model.local_epochs 1"


def rows(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("loggers", [0, 1, 2])
def test_best_models_are_in_the_run_folder_with_any_logger(small_run, tmp_path, loggers):
    best = ModelCheckpoint(monitor="val_acc", mode="max", save_top_k=2, filename="best-{epoch}")
    chosen = [CSVLogger(tmp_path / "logs"), TensorBoardLogger(tmp_path / "logs")][:loggers]
    run = small_run(rounds=3, callbacks=[best], logger=chosen or False, data={"val_fraction": 0.2}).fit()
    files = {file.name for file in (run.folder / "checkpoints").iterdir()}
    assert "last.ckpt" in files
    assert len([name for name in files if name.startswith("best-epoch=")]) == 2
    assert not list((tmp_path / "logs").rglob("*.ckpt"))


def test_a_folder_that_the_user_names_is_kept(small_run, tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path / "mine", monitor="train_loss")
    small_run(rounds=2, callbacks=[best]).fit()
    assert list((tmp_path / "mine").glob("*.ckpt"))


def test_a_second_fit_has_its_own_folder_of_models(small_run):
    best = ModelCheckpoint(monitor="train_loss")
    first = small_run(rounds=1, callbacks=[best]).fit()
    folder = first.folder
    second = small_run(rounds=1)
    first.trainer.fit(second.module, datamodule=second.data)
    assert first.folder != folder
    assert best.dirpath == str(first.folder / "checkpoints")


@pytest.mark.cpu_bits
def test_callback_metrics_are_the_rounds_and_stay_in_place(small_run, monkeypatch):
    moved = []
    monkeypatch.setattr(_ResultMetric, "to", lambda number, *where: moved.append(number.meta.name) or number)
    run = small_run(rounds=3).fit()
    monitored = run.trainer.callback_metrics
    assert {"train_loss", "models_received", "test_acc", "val_loss"} <= monitored.keys()
    for name, value in monitored.items():
        assert value == pytest.approx(run.trainer.run.metrics[name][-1], rel=1e-12, nan_ok=True), name
    assert moved == []


def test_loggers_write_one_value_per_round_to_their_folders(small_run, tmp_path):
    loggers = [CSVLogger(tmp_path / "here", name="mine"), TensorBoardLogger(tmp_path / "there", name="yours")]
    stop = EarlyStopping("train_loss", patience=50)
    run = small_run(rounds=3, logger=loggers, callbacks=[LearningRateMonitor(), stop]).fit()
    found = rows(tmp_path / "here" / "mine" / "version_0")
    accuracies = [float(row["test_acc"]) for row in found if row["test_acc"]]
    assert accuracies == pytest.approx(run.trainer.run.metrics["test_acc"].tolist(), abs=1e-6)
    events = EventAccumulator(str(tmp_path / "there" / "yours" / "version_0")).Reload()
    logged = events.Scalars("test_acc")
    assert [event.value for event in logged] == pytest.approx(accuracies, abs=1e-6)
    for name in ("train_loss", "test_acc", "lr-SGD", "models_received"):
        assert [event.step for event in events.Scalars(name)] == [0, 1, 2], name
    settings = yaml.safe_load((tmp_path / "here" / "mine" / "version_0" / "hparams.yaml").read_text())
    assert settings["policies"] == ["AFIND", "AdaptiveThreshold", "Boltzmann", "Bernoulli"]
    assert settings["clients"] == 6


def test_a_command_passes_loggers_config_and_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = f"--config afind --trainer.max_rounds 2 --trainer.accelerator cpu {SMALL} --trainer.logger true"
    assert command("fit", words.split()) == 0
    (folder,) = (tmp_path / "runs" / "afind").iterdir()
    (logs,) = (folder / "logs").iterdir()
    assert list(logs.glob("events.out.tfevents*"))
    settings = yaml.unsafe_load((logs / "hparams.yaml").read_text())
    assert settings["selection"]["init_args"]["nu"] == 0.2
    assert settings["model"]["local_epochs"] == 1
    assert not (tmp_path / "lightning_logs").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_a_resumed_run_continues_logging_in_its_folder(small_run):
    first = small_run(rounds=2, logger=True).fit()
    small_run(rounds=4, logger=True).fit(first.folder / "checkpoints" / "last.ckpt")
    steps = [
        event.step
        for version in sorted((first.folder / "logs").iterdir())
        for event in EventAccumulator(str(version)).Reload().Scalars("test_acc")
    ]
    assert steps == [0, 1, 2, 3]
