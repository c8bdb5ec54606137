"""A run that was stopped anywhere and resumed ends bit for bit like the run that never was."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from dfl_lightning.checkpoints import read_checkpoint
from dfl_lightning.loop import RunStopped
from dfl_lightning.report.run_folder import RunFolder
from dfl_lightning.round import RoundCallback

ROUNDS = 6
BEFORE = (
    "on_train_epoch_start on_train_batch_start on_propose on_engine_progress on_compare on_select on_weigh on_mix "
    "on_round_end on_train_batch_end"
).split()
"""Hooks before a round is committed."""
AFTER = "on_validation_start on_validation_end on_train_epoch_end on_boundary".split()
EVALUATION = ("on_validation_start", "on_validation_end")
COUNTED = "on_train_epoch_start on_train_batch_end on_round_end on_validation_end on_train_epoch_end".split()


class Bomb(RoundCallback):
    """Acts once, in one hook of one round."""

    def __init__(self, hook, round, act):
        self.hook, self.round, self.act = hook, round, act

    def hear(self, hook, trainer):
        if hook != self.hook:
            return
        round = trainer.lightning_module.bank.boundary.round - (hook in AFTER)
        if hook == "on_train_start" or round == self.round:
            self.hook = None
            self.act(trainer)


class Count(RoundCallback):
    """A monitor with state in the hooks of Lightning and of the round."""

    def __init__(self):
        self.heard = dict.fromkeys(COUNTED, 0)

    def hear(self, hook, trainer):
        self.heard[hook] += 1

    def state_dict(self):
        return dict(self.heard)

    def load_state_dict(self, state_dict):
        self.heard = dict(state_dict)


def hears(hook):
    return lambda self, trainer, *args: self.hear(hook, trainer)


for name in ("on_train_start", *BEFORE, *AFTER):
    setattr(Bomb, name, hears(name))
for name in COUNTED:
    setattr(Count, name, hears(name))


def throw(trainer):
    raise RuntimeError("boom")


def terminate(trainer):
    os.kill(os.getpid(), signal.SIGTERM)


def press_ctrl_c(trainer):
    os.kill(os.getpid(), signal.SIGINT)


def save(trainer):
    trainer.save_checkpoint(trainer.run.path / "checkpoints" / "saved.ckpt")


STOPS = {"error": throw, "SIGTERM": terminate, "ctrl-c": press_ctrl_c, "save": save}


@pytest.fixture
def start(small_run):
    def start(bomb=None, late=False, rounds=ROUNDS, policies=None, **options):
        bombs = [] if bomb is None else [bomb]
        watchers = [EarlyStopping("val_loss", patience=99), Count()]
        callbacks = [*watchers, RunFolder(), *bombs] if late else [*bombs, *watchers]
        return small_run(rounds, callbacks, policies, check_val_every_n_epoch=2, **options)

    return start


@contextlib.contextmanager
def tolerated(*kinds):
    """The error or signal that ends a run on purpose; a late signal must not end the tests."""
    old = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM,)}
    old[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    except kinds:
        pass
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


def fit(run, *args):
    with tolerated(RunStopped):
        try:
            run.fit(*args)
        except RuntimeError as error:
            assert "boom" in str(error)
    return run


def table(path):
    """metrics.csv by round, without the seconds."""
    header, *lines = [line.split(",") for line in (path / "metrics.csv").read_text().splitlines()]
    return [{k: v for k, v in zip(header, line, strict=True) if k != "seconds"} for line in lines]


def arrays(path):
    with np.load(path, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def result(run):
    """Everything that must not depend on how often the run was stopped."""
    trainer, folder = run.trainer, run.folder
    seen = {c.state_key: c.state_dict() for c in trainer.callbacks if c.state_dict()}
    return {
        "rows": run.module.bank.boundary.rows,
        "closed": run.module.bank.boundary.closed,
        "callbacks": seen,
        "metrics.csv": table(folder),
        "clients.npz": arrays(folder / "clients.npz"),
        "graphs.npz": arrays(folder / "graphs.npz"),
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "lr": run.module.learning_rate,
        "monitored": {k: v for k, v in trainer.callback_metrics.items()},
        "summary": {k: v for k, v in trainer.run.summary.items() if k != "seconds"},
    }


def same(a, b, where=""):
    """Assert that two nested results are equal to the last bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert list(sorted(map(str, a))) == list(sorted(map(str, b))), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.nan_to_num(12345.0), b.nan_to_num(12345.0)), where
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, where
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), where
    else:
        assert a == b, where


REFERENCE = {}


@pytest.fixture
def reference(start, tmp_path):
    if not REFERENCE:
        run = start(root=tmp_path / "reference").fit()
        assert [row["round"] for row in table(run.folder)] == [str(r) for r in range(ROUNDS)]
        assert len({row["val_loss"] for row in table(run.folder)}) == 4  # three evaluations, empty cells
        REFERENCE.update(result(run))
    return REFERENCE


def cases():
    """Every hook in rounds 0, 2, 3 by every way to stop; one in three of them in a normal run."""
    number = 0
    for how in STOPS:
        for hook in ("on_train_start", *BEFORE, *AFTER):
            for round in (3,) if hook in EVALUATION else (0, 2, 3):
                number += 1
                rest = () if number % 3 == 0 else pytest.mark.slow
                yield pytest.param(how, hook, round, marks=rest, id=f"{how}-{hook}-{round}")


@pytest.mark.parametrize(("how", "hook", "round"), list(cases()))
def test_a_stopped_and_resumed_run_ends_like_one_that_was_not(start, reference, how, hook, round):
    check(start, reference, how, hook, round)


@pytest.mark.parametrize("how", ["error", "save"])
@pytest.mark.parametrize("hook", ["on_round_end", "on_train_epoch_end", "on_boundary"])
def test_it_does_not_matter_whether_the_stop_comes_before_or_after_the_run_folder(start, reference, how, hook):
    check(start, reference, how, hook, 3, late=True)


def check(start, reference, how, hook, round, late=False):
    before = None
    if hook == "on_train_start" and round:
        before = fit(start(Bomb("on_boundary", round - 1, throw))).folder
    run = start(Bomb(hook, round, STOPS[how]), late)
    fit(run, before and before / "checkpoints" / "last.ckpt")
    assert before in (None, run.folder)
    if how == "save":
        same(reference, result(run))  # saving changes nothing
    file = run.folder / "checkpoints" / ("saved.ckpt" if how == "save" else "last.ckpt")
    if run.module.bank.boundary.round == 0:
        assert not file.exists()  # nothing to resume
        return
    assert how == "save" or run.trainer.run.summary.get("status", "stopped") == "stopped"
    rows = table(run.folder)
    resumed = start()
    fit(resumed, file)
    assert resumed.folder == run.folder
    same(reference, result(resumed))
    done, closed = read_checkpoint(file)["state_dict"]["bank.progress"].tolist()
    cut = rows[done - (not closed) :]
    aside = [row for folder in sorted((run.folder / "superseded").glob("*")) for row in table(folder)]
    assert aside == cut
    assert bool(cut) == (how == "save")
