"""Lightning's own features around communication rounds."""

import csv
import functools
import hashlib
import os
import signal
import warnings

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.strategies import DDPStrategy

from dfl_lightning import DFLTrainer
from dfl_lightning import callbacks as families
from dfl_lightning.callbacks import Monitor
from dfl_lightning.checkpoints.io import read_checkpoint, rounds_in
from dfl_lightning.loop import RunStopped
from dfl_lightning.objectives import Ditto
from dfl_lightning.utils.errors import UserError


class Events(Monitor):
    """A monitor that lists events in their order."""

    def __init__(self):
        self.events = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.events.append(f"epoch {trainer.current_epoch}")

    def on_propose(self, round):
        self.events.append(f"round {round.index}")

    def on_mix(self, round):
        self.events.append("mix")

    def on_validation_end(self, trainer, pl_module):
        self.events.append("evaluate")

    def on_train_epoch_end(self, trainer, pl_module):
        self.events.append("epoch end")

    def on_boundary(self, trainer, module):
        self.events.append("boundary")


class StopIn(Monitor):
    def __init__(self, hook, round):
        self.hook, self.round = hook, round

    def setup(self, trainer, pl_module, stage):
        self.trainer = trainer

    def act(self, hook):
        trainer = self.trainer
        if hook == self.hook and trainer.lightning_module.bank.boundary.round == self.round:
            trainer.should_stop = True


for name in ("on_train_epoch_start", "on_engine_progress", "on_weigh", "on_validation_end"):
    setattr(StopIn, name, lambda self, *args, name=name: self.act(name))


def progress(file):
    return read_checkpoint(file)["state_dict"]["bank.progress"].tolist()


# --- rounds, evaluations, ends


def test_a_round_is_an_epoch_and_evaluation_comes_after_mixing(small_run):
    events = Events()
    run = small_run(3, [events], check_val_every_n_epoch=2, policies=[families.Gossip(2), families.Uniform()]).fit()
    expected = [
        *("epoch 0", "round 0", "mix", "epoch end", "boundary"),
        *("epoch 1", "round 1", "mix", "evaluate", "epoch end", "boundary"),
        *("epoch 2", "round 2", "mix", "epoch end", "boundary"),
    ]
    assert events.events == expected
    assert run.trainer.current_epoch == run.trainer.global_step == 3


def test_max_epochs_is_another_name_of_max_rounds():
    assert DFLTrainer(max_epochs=7, accelerator="cpu").max_epochs == 7
    assert DFLTrainer(max_rounds=7, accelerator="cpu").max_epochs == 7
    assert DFLTrainer(accelerator="cpu").max_epochs == 100
    with pytest.raises(UserError, match="not both"):
        DFLTrainer(max_rounds=7, max_epochs=7)


def test_evaluation_can_be_switched_off(small_run):
    events = Events()
    run = small_run(2, [events], limit_val_batches=0).fit()
    assert "evaluate" not in events.events
    assert run.trainer.run.clients["rounds"].tolist() == []
    assert run.trainer.run.summary["test_accuracy"] == {}


@pytest.mark.parametrize("asked", [True, 1])
def test_fast_dev_run_is_one_round_that_leaves_nothing(small_run, tmp_path, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    events = Events()
    run = small_run(9, [events], fast_dev_run=asked).fit()
    assert events.events.count("boundary") == events.events.count("evaluate") == 1
    assert run.module.bank.boundary.round == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no run folder"):
        _ = run.trainer.run


@pytest.mark.parametrize("hook", ["on_train_epoch_start", "on_engine_progress", "on_weigh", "on_validation_end"])
def test_should_stop_ends_the_run_at_a_boundary(small_run, hook):
    committed = 3 if hook == "on_validation_end" else 2
    policies = [families.Gossip(2), families.Uniform()]
    run = small_run(6, [StopIn(hook, committed)], policies).fit()
    assert run.module.bank.boundary.round == run.trainer.current_epoch == 3
    assert run.module.bank.boundary.closed
    assert run.trainer.run.clients["rounds"].tolist() == [0, 1, 2]
    assert run.trainer.run.summary["status"] == "finished"
    assert progress(run.folder / "checkpoints" / "last.ckpt") == [3, 1]


def test_max_time_ends_the_run_at_a_boundary(small_run):
    run = small_run(5_000, max_time={"seconds": 1}).fit()
    done = run.module.bank.boundary.round
    assert 1 < done < 5_000
    assert run.trainer.run.metrics["round"].tolist() == list(range(done))
    resumed = small_run(5_000, max_time={"seconds": 1}).fit(run.folder / "checkpoints" / "last.ckpt")
    assert resumed.module.bank.boundary.round == done  # the time is used up


# --- early stopping


class Worse(Monitor):
    """A number that gets better until round 2."""

    def on_round_end(self, round):
        round.log("made_up", abs(round.index - 2))


@pytest.mark.cpu_bits
@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping_stops_at_a_boundary_for_good(small_run, patience):
    def make():
        return small_run(9, [EarlyStopping("made_up", patience=patience), Worse()])

    run = make().fit()
    assert run.module.bank.boundary.round == 3 + patience
    rows = run.rows.clone()
    resumed = make().fit(run.folder / "checkpoints" / "last.ckpt")
    assert resumed.module.bank.boundary.round == 3 + patience
    assert torch.equal(resumed.rows, rows)
    assert resumed.trainer.run.summary["rounds"] == 3 + patience
    assert resumed.trainer.run.summary["status"] == "finished"
    again = resumed.fit()
    assert again.module.bank.boundary.round == 3 + patience


def test_early_stopping_sees_validation_numbers(small_run):
    stopping = EarlyStopping("val_loss", patience=99)
    run = small_run(4, [stopping], check_val_every_n_epoch=2).fit()
    losses = run.trainer.run.clients["val_loss"].mean(1)
    assert float(stopping.best_score) == pytest.approx(losses.min(), rel=1e-6)


# --- checkpoints of Lightning's own


def test_model_checkpoint_keeps_the_best_round(small_run):
    best = ModelCheckpoint(monitor="val_loss", filename="best-{epoch}")
    run = small_run(5, [best]).fit()
    losses = run.trainer.run.clients["val_loss"].mean(1)
    assert best.best_model_path == str(run.folder / "checkpoints" / f"best-epoch={losses.argmin()}.ckpt")
    assert rounds_in(run.folder / "checkpoints" / f"best-epoch={losses.argmin()}.ckpt") == losses.argmin() + 1


def test_the_first_round_may_be_the_best(small_run):
    best = ModelCheckpoint(monitor="made_up", mode="max", filename="best-{epoch}", save_on_train_epoch_end=True)

    class Falling(Monitor):
        def on_round_end(self, round):
            round.log("made_up", -round.index)

    run = small_run(3, [best, Falling()]).fit()
    assert best.best_model_path == str(run.folder / "checkpoints" / "best-epoch=0.ckpt")
    assert rounds_in(best.best_model_path) == 1


def test_model_checkpoint_every_so_many_rounds_with_its_own_last(small_run):
    every = ModelCheckpoint(every_n_epochs=2, save_top_k=-1, save_last=True)
    run = small_run(5, [every]).fit()
    folder = run.folder / "checkpoints"
    assert {f.name: rounds_in(f) for f in folder.glob("epoch*.ckpt")} == {
        "epoch=1-step=2.ckpt": 2,
        "epoch=3-step=4.ckpt": 4,
    }


@pytest.mark.cpu_bits
def test_a_run_resumes_from_a_model_checkpoint_in_the_middle(small_run):
    def make():
        return small_run(5, [ModelCheckpoint(monitor="val_loss", save_top_k=-1, filename="{epoch}")])

    whole = make().fit()
    rows, table = whole.rows.clone(), (whole.folder / "metrics.csv").read_text()
    resumed = make().fit(whole.folder / "checkpoints" / "epoch=2.ckpt")
    assert torch.equal(resumed.rows, rows)
    assert resumed.folder == whole.folder
    assert len(table.splitlines()) == len((whole.folder / "metrics.csv").read_text().splitlines())


class Fail(Monitor):
    def __init__(self, round=2):
        self.round = round

    def on_select(self, round):
        if round.index == self.round:
            self.round = None
            raise RuntimeError("boom")


@pytest.mark.cpu_bits
def test_on_exception_checkpoint_is_a_boundary(small_run, tmp_path):
    whole = small_run(4).fit()
    run = small_run(4, [OnExceptionCheckpoint(tmp_path / "kept"), Fail()])
    with pytest.raises(RuntimeError, match="boom"):
        run.fit()
    file = tmp_path / "kept" / "on_exception.ckpt"
    assert progress(file) == [2, 1]
    resumed = small_run(4).fit(file)
    assert torch.equal(resumed.rows, whole.rows)


def test_a_new_run_leaves_an_on_exception_checkpoint_alone(small_run, tmp_path):
    """Lightning would resume it without request, in a folder that lacks the rounds before."""
    with pytest.raises(RuntimeError, match="boom"):
        small_run(4, [OnExceptionCheckpoint(tmp_path / "kept"), Fail()]).fit()
    new = small_run(3, [OnExceptionCheckpoint(tmp_path / "kept")]).fit()
    assert new.trainer.run.metrics["round"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("word", ["best", "last"])
def test_best_and_last_models_continue_in_their_checkpoints_folder(small_run, word):
    with pytest.raises(UserError, match="ckpt_path=best: no ModelCheckpoint of the trainer saved a best model"):
        small_run(2).fit("best")
    run = small_run(2, [ModelCheckpoint(monitor="train_loss", save_last=True)]).fit()
    folder = run.folder
    run.trainer.fit_loop.max_epochs = 3
    run.trainer.fit(small_run(3).module, datamodule=run.data, ckpt_path=word)
    assert run.folder == folder
    assert run.trainer.run.metrics["round"].tolist() == [0, 1, 2]
    (means,) = run.trainer.test(small_run(2).module, datamodule=run.data, ckpt_path=word, verbose=False)
    assert means["test_acc"] == pytest.approx(run.trainer.run.metrics["test_acc"][-1])  # the loss has fallen


def test_on_exception_checkpoint_does_not_hide_a_refusal(small_run, tmp_path):
    run = small_run(4, [OnExceptionCheckpoint(tmp_path / "kept")], policies=[families.Gossip()], defaults=False)
    with pytest.raises(UserError, match="no aggregation"):
        run.fit()


# --- loggers


def test_the_csv_logger_counts_rounds(small_run, tmp_path):
    logger = CSVLogger(tmp_path / "logs")
    run = small_run(4, [LearningRateMonitor()], logger=logger, check_val_every_n_epoch=2, log_every_n_steps=1).fit()
    with open(tmp_path / "logs/lightning_logs/version_0/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = {c: [int(r["step"]) for r in rows if r[c]] for c in ("train_loss", "val_loss", "lr-SGD", "neighbours")}
    assert steps == {"train_loss": [0, 1, 2, 3], "val_loss": [1, 3], "lr-SGD": [0, 1, 2, 3], "neighbours": [0, 1, 2, 3]}
    assert [float(r["lr-SGD"]) for r in rows if r["lr-SGD"]] == [0.1, 0.1, 0.05, 0.05]
    losses = [float(r["train_loss"]) for r in rows if r["train_loss"]]
    assert losses == pytest.approx(run.trainer.run.metrics["train_loss"], rel=1e-6)


# --- learning rate, clipping, precision


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.3),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        None,
    ],
    ids=["step", "cosine", "exponential", "none"],
)
def test_a_schedule_steps_once_a_round_as_torch_would(small_run, schedule):
    used = []

    class Watch(Monitor):
        def on_propose(self, round):
            used.append(round.lr)

    small_run(5, [Watch()], module={"lr_scheduler": schedule}).fit()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = schedule(optimizer) if schedule else None
    expected = []
    for _ in range(5):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    assert used == expected


def by_dimensions(parameters):
    few = [p for p in parameters if p.ndim <= 1]
    return torch.optim.SGD([{"params": [p for p in parameters if p.ndim > 1]}, {"params": few, "lr": 0.2}], lr=0.1)


def test_every_group_has_its_scheduled_and_logged_values(small_run, tmp_path):
    used = []

    class Watch(Monitor):
        def on_propose(self, round):
            used.append(round.hyperparameters)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=4)

    optimizer = by_dimensions([torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))])
    scheduler, expected = schedule(optimizer), []
    for _ in range(4):
        expected.append(tuple({"lr": g["lr"], "momentum": g["momentum"]} for g in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    callbacks = [Watch(), LearningRateMonitor(log_momentum=True)]
    options = {"logger": CSVLogger(tmp_path / "logs"), "log_every_n_steps": 1}
    small_run(4, callbacks, module={"optimizer": by_dimensions, "lr_scheduler": schedule}, **options).fit()
    assert used == expected
    with open(tmp_path / "logs/lightning_logs/version_0/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for group in (0, 1):
        for name, column in (("lr", ""), ("momentum", "-momentum")):
            logged = [float(r[f"lr-SGD/pg{group + 1}{column}"]) for r in rows if r[f"lr-SGD/pg{group + 1}{column}"]]
            assert logged == pytest.approx([fields[group][name] for fields in expected])


def test_a_fork_has_the_rates_of_its_own_config(small_run):
    """Lightning would bring back those of the checkpoint."""
    used = []

    class Watch(Monitor):
        def on_propose(self, round):
            used.append(round.lr)

    def options(lr, gamma):
        optimizer = functools.partial(torch.optim.SGD, lr=lr)
        schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=gamma)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    run = small_run(2, [Watch()], module=options(0.1, 0.5)).fit()
    last = run.folder / "checkpoints" / "last.ckpt"
    small_run(4, [Watch()], module=options(0.2, 0.9)).fit(last, fork=True)
    assert used == pytest.approx([0.1, 0.05, 0.2 * 0.9**2, 0.2 * 0.9**3])
    adam = {"optimizer": functools.partial(torch.optim.Adam, lr=0.01), "lr_scheduler": None}
    small_run(3, [Watch()], module=adam).fit(last, fork=True)
    assert used[-1] == 0.01


@pytest.mark.parametrize(
    ("schedule", "rounds", "sentence"),
    [
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 0), 2, "StepLR gives no learning rate for round 2"),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=5), 7, "OneCycleLR gives no .* for round 7"),
    ],
    ids=["step of nothing", "too short"],
)
def test_a_schedule_shorter_than_the_run_is_refused(small_run, tmp_path, schedule, rounds, sentence):
    with pytest.raises(UserError, match=sentence):
        small_run(rounds, module={"lr_scheduler": schedule}).fit()
    assert not list(tmp_path.rglob("metrics.csv"))
    small_run(rounds - 1, module={"lr_scheduler": schedule}).fit()  # one round less, and it lasts


def test_fine_tuning_after_the_last_round_needs_a_rate_too(small_run):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)

    small_run(3, module={"lr_scheduler": schedule}).fit()
    with pytest.raises(UserError, match="for round 4"):
        small_run(3, module={"lr_scheduler": schedule, "finetune_epochs": 1}).fit()


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_adafactor_runs_one_client_after_the_other(small_run, engine):
    run = small_run(2, module={"optimizer": torch.optim.Adafactor, "lr_scheduler": None}, engine=engine).fit()
    assert run.trainer.run.summary["engine"]["name"] == "loop"
    assert ("optimizer Adafactor" in str(run.trainer.run.summary["engine"])) == (engine == "auto")


@pytest.mark.cpu_bits
def test_gradient_clipping_reaches_the_engine(small_run):
    plain = small_run(1).fit()
    norm, value = (
        small_run(1, gradient_clip_val=1e-3),
        small_run(1, gradient_clip_val=1e-3, gradient_clip_algorithm="value"),
    )
    loose = small_run(1, gradient_clip_val=1e6)
    start = small_run(0).fit().rows
    moved = {}
    for name, run in (("norm", norm), ("value", value), ("loose", loose)):
        run.fit()
        moved[name] = (run.rows - start).norm(dim=1).max()
    assert norm.module.engine.config.clip_norm == value.module.engine.config.clip_value == 1e-3
    assert torch.equal(loose.rows, plain.rows)
    assert 0 < moved["norm"] < moved["value"] < (plain.rows - start).norm(dim=1).max()


@pytest.mark.cpu_bits
@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), (64, torch.float64), (32, torch.float32)])
def test_the_precision_option_sets_the_type_of_rows(small_run, precision, dtype):
    run = small_run(2, precision=precision).fit()
    assert run.rows.dtype == dtype
    resumed = small_run(3, precision=precision).fit(run.folder / "checkpoints" / "last.ckpt")
    whole = small_run(3, precision=precision).fit()
    assert resumed.rows.dtype == dtype
    assert torch.equal(resumed.rows, whole.rows)


# --- validate and test


@pytest.mark.parametrize("finetune_epochs", [0, 1])
def test_validate_and_test_repeat_trainings_numbers_without_writing(small_run, tmp_path, monkeypatch, finetune_epochs):
    monkeypatch.chdir(tmp_path)
    options = {"module": {"finetune_epochs": finetune_epochs}}
    run = small_run(4, checkpoint_every=3, **options).fit()
    before = {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in tmp_path.rglob("*") if f.is_file()}
    clients = run.trainer.run.clients
    for file, number in (("last.ckpt", 3), ("previous.ckpt", 2)):
        for module in (small_run(4, **options).module, run.module):  # a new one, and one that has gone on training
            for command in ("validate", "test"):
                trainer = small_run(4).trainer
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*does not have many workers.*")
                    evaluate = getattr(trainer, command)
                    (means,) = evaluate(
                        module, datamodule=run.data, ckpt_path=run.folder / "checkpoints" / file, verbose=False
                    )
                found = module.bank.boundary.evaluation
                for name in ("val_loss", "val_acc", "test_loss", "test_acc"):
                    assert torch.equal(found[name], torch.from_numpy(clients[name][number])), (file, command, name)
                    assert means[name] == pytest.approx(clients[name][number].mean(), rel=1e-6)
    assert {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_validate_after_a_signal_in_the_same_process(small_run):
    class Impatient(Monitor):
        def on_select(self, round):
            os.kill(os.getpid(), signal.SIGINT)

    run = small_run(4, [Impatient()])
    with pytest.raises(RunStopped):
        run.fit()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        (means,) = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    assert means["val_loss"] > 0


@pytest.mark.cpu_bits
def test_validate_between_two_fits_changes_nothing(small_run):
    whole, run = small_run(4).fit(), small_run(2).fit()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    run.trainer.fit_loop.max_epochs = 4
    run.fit()
    assert torch.equal(run.rows, whole.rows)
    for name, values in whole.trainer.run.clients.items():
        assert (run.trainer.run.clients[name] == values).all()


# --- profiler


def test_the_profiler_shows_the_parts_of_a_round(small_run):
    run = small_run(2, profiler="simple").fit()
    summary = run.trainer.profiler.summary()
    for part in ("train", "evaluate", "compare", "mix", "[RoundCallback]AFIND.on_select", "run_training_epoch"):
        assert f"|  {part} " in summary, part
    assert set(run.trainer.run.summary["seconds"]) == {"rounds", "train", "compare", "mix", "evaluate"}


# --- what has no meaning for rounds


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"fast_dev_run": 2}, "fast_dev_run=2; it is true or false: .* use trainer.max_rounds 2 for more"),
        ({"max_rounds": 3, "min_epochs": 4}, "min_epochs=4 asks for more rounds than trainer.max_rounds=3 allows"),
        ({"plugins": [HalfPrecision()]}, "plugins HalfPrecision would change how Lightning computes batches"),
        ({"min_steps": 5}, "min_steps=5 has no meaning for communication rounds; use min_epochs"),
        (
            {"limit_train_batches": 3},
            "limit_train_batches=3 has no meaning for communication rounds; use model.local_epochs",
        ),
        ({"limit_train_batches": 0}, "limit_train_batches=0 has no meaning"),
        ({"limit_train_batches": 1}, "limit_train_batches=1 has no meaning .* use model.local_epochs or model.local"),
        ({"limit_val_batches": 1}, "limit_val_batches=1 has no meaning .* an evaluation uses all samples; 0 switches"),
        ({"limit_test_batches": 2}, "limit_test_batches=2 has no meaning .* an evaluation uses all samples"),
        ({"limit_predict_batches": 2}, "limit_predict_batches=2 has no meaning .* a run makes no predictions"),
        ({"num_sanity_val_steps": 2}, "num_sanity_val_steps=2 .* DFLTrainer.validate evaluates first models"),
        ({"model_registry": "mine"}, "model_registry=mine .* run folders are not uploaded"),
        (
            {"limit_val_batches": 0.5},
            "limit_val_batches=0.5 has no meaning for communication rounds; an evaluation uses all samples; 0 switches",
        ),
        ({"val_check_interval": 0.5}, "val_check_interval=0.5 .* use check_val_every_n_epoch"),
        ({"val_check_interval": 3}, "val_check_interval=3 .* use check_val_every_n_epoch"),
        ({"val_check_interval": "00:00:01:00"}, "val_check_interval=.* use check_val_every_n_epoch"),
        ({"check_val_every_n_epoch": None}, "check_val_every_n_epoch=None .* give a number of rounds"),
        ({"overfit_batches": 1}, "overfit_batches=1 has no meaning"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1 .* data stay resident"),
        ({"sync_batchnorm": True}, "sync_batchnorm=True .* clients never share batches"),
        ({"barebones": True}, "barebones=True has no meaning"),
        ({"cohorts": 0}, "cohorts=0; it is a number of groups of clients, 1 or more"),
        ({"run_name": "../elsewhere"}, r"run_name=../elsewhere: it is the name of a folder"),
        ({"checkpoints": "half"}, "checkpoints=half; it is full or sharded"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "x"}, "gradient_clip_algorithm=x; it is norm or value"),
        ({"strategy": DDPStrategy(), "devices": 2}, "strategy=DDPStrategy would synchronise clients; use clients"),
        ({"strategy": "dpp"}, "strategy=dpp: there is no such strategy; did you mean 'ddp'?"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging works on Lightning's steps"),
        (
            {"callbacks": [GradientAccumulationScheduler({0: 2})]},
            "GradientAccumulationScheduler works on Lightning's steps",
        ),
        ({"callbacks": [LearningRateFinder()]}, "LearningRateFinder works on Lightning's steps"),
        ({"callbacks": BatchSizeFinder()}, "BatchSizeFinder works on Lightning's steps"),
        ({"callbacks": [WeightAveraging()]}, "WeightAveraging works on Lightning's steps"),
        ({"callbacks": [EMAWeightAveraging()]}, "EMAWeightAveraging works on Lightning's steps"),
        ({"callbacks": [ModelPruning("l1_unstructured")]}, "ModelPruning works on Lightning's steps"),
        ({"callbacks": [BackboneFinetuning()]}, "BackboneFinetuning works on Lightning's steps"),
        ({"callbacks": [SpikeDetection()]}, "SpikeDetection works on Lightning's steps"),
        (
            {"callbacks": [families.Gossip]},
            r"callbacks of the trainer: Gossip is a class; make an object of it, Gossip\(",
        ),
        ({"callbacks": [Ditto()]}, "callbacks of the trainer: Ditto is not a callback"),
        ({"max_rounds": 2.0}, "max_rounds=2.0; it is a whole number"),
        (
            {"callbacks": [ModelCheckpoint(monitor="test_loss")]},
            r"ModelCheckpoint\(monitor=test_loss\) would choose by test",
        ),
        ({"callbacks": [ModelCheckpoint(monitor="global_test_acc")]}, r"global_test_acc\) would choose by test data"),
    ],
    ids=lambda value: str(value).partition(" object at 0x")[0],  # the same in every process
)
def test_meaningless_options_are_refused_with_a_remedy(option, sentence):
    with pytest.raises(UserError, match=sentence):
        DFLTrainer(**{"accelerator": "cpu", **option})


def test_data_come_from_a_datamodule(small_run):
    run = small_run(1)
    with pytest.raises(UserError, match="datamodule"):
        run.trainer.fit(run.module)
    for more in ({}, {"datamodule": run.data}):
        with pytest.raises(UserError, match="takes clients' data as datamodule"):
            run.trainer.fit(run.module, [0], **more)
    for evaluate, name in ((run.trainer.test, "test"), (run.trainer.validate, "validate")):
        for wrong in (None, LightningDataModule()):
            with pytest.raises(UserError, match=f"DFLTrainer.{name} takes clients' data as datamodule"):
                evaluate(run.module, datamodule=wrong)


def test_an_evaluation_uses_the_models_of_the_last_fit(small_run):
    run = small_run(1).fit()
    (means,) = run.trainer.test(datamodule=run.data, verbose=False)
    assert means["test_acc"] == pytest.approx(run.trainer.run.metrics["test_acc"][-1])


def test_a_plain_trainer_is_refused(small_run):
    run = small_run(1)
    other = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with pytest.raises(UserError, match="a DFLModule is trained by a DFLTrainer, not by a Trainer"):
        other.fit(run.module, datamodule=run.data)


@pytest.mark.parametrize("second", ["refused", "no module"])
def test_a_fit_refused_early_leaves_the_last_run_unchanged(small_run, second):
    run = small_run(1).fit()
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    module, word = (run.module, "best") if second == "refused" else (None, None)
    with pytest.raises((UserError, TypeError)):
        run.trainer.fit(module, datamodule=run.data, ckpt_path=word)
    assert {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()} == before


def fewer_clients(run):
    run.data.num_clients = 5


def another_policy_in_place(run):
    policy = run.trainer.callbacks[0]
    policy.row_sets = {"initial": "models"}


def another_precision(run):
    run.trainer.precision_of_rows = "64-true"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (fewer_clients, "6 nodes, clients and servers, and this run has 5"),
        (another_policy_in_place, "no row set 'initial', which a policy"),
        (another_precision, "models of float32, and this run computes in float64"),
    ],
)
def test_a_second_fit_with_incompatible_rows_is_refused(small_run, change, sentence):
    run = small_run(1, policies=[families.Gossip(k=2), families.Uniform()]).fit()
    change(run)
    run.trainer.fit_loop.max_epochs = 2
    with pytest.raises(UserError, match=f"the module was fitted before, with {sentence}.*; make a new DFLModule"):
        run.fit()


def test_the_callers_list_of_callbacks_is_not_changed():
    callbacks = [families.Gossip(), families.Uniform()]
    DFLTrainer(accelerator="cpu", callbacks=callbacks)
    assert len(callbacks) == 2
