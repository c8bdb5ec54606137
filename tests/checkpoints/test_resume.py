"""A run that was stopped anywhere and resumed ends bit for bit like the run that never was."""

import contextlib
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.loop import RunStopped
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.runs.run_folder import RunFolder

pytestmark = pytest.mark.cpu_bits

ROUNDS = 6
BEFORE = [
    *("on_train_epoch_start", "on_train_batch_start", "on_propose", "on_engine_progress", "on_compare", "on_select"),
    *("on_weigh", "on_mix", "on_round_end", "on_train_batch_end"),
]
"""Hooks before a round is committed."""
AFTER = ["on_validation_start", "on_validation_end", "on_train_epoch_end", "on_boundary"]
EVALUATION = ("on_validation_start", "on_validation_end")
COUNTED = ["on_train_epoch_start", "on_train_batch_end", "on_round_end", "on_validation_end", "on_train_epoch_end"]


class Bomb(RoundCallback):
    """Acts once, in one hook of one round."""

    def __init__(self, hook, round, act):
        self.hook, self.round, self.act = hook, round, act

    def handle(self, hook, trainer):
        if hook != self.hook:
            return
        round = trainer.lightning_module.bank.boundary.round - (hook in AFTER)
        if hook == "on_train_start" or round == self.round:
            self.hook = None
            self.act(trainer)


class Count(RoundCallback):
    """A monitor with state in the hooks of Lightning and of the round."""

    def __init__(self):
        self.counts = dict.fromkeys(COUNTED, 0)

    def handle(self, hook, trainer):
        self.counts[hook] += 1

    def state_dict(self):
        return dict(self.counts)

    def load_state_dict(self, state_dict):
        self.counts = dict(state_dict)


def handler_of(hook):
    return lambda self, *args: self.handle(hook, self.trainer)


def remember(self, trainer, pl_module, stage):
    """Hooks of a round are called without the trainer."""
    self.trainer = trainer


Bomb.setup = Count.setup = remember
for name in ("on_train_start", *BEFORE, *AFTER):
    setattr(Bomb, name, handler_of(name))
for name in COUNTED:
    setattr(Count, name, handler_of(name))


class Boom(RuntimeError):
    pass


def throw(trainer):
    raise Boom


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
    """Tolerate the error or signal that ends a run on purpose; a SIGTERM without a handler must not end the tests."""
    old = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    except kinds:
        pass
    finally:
        signal.signal(signal.SIGTERM, old)


def fit(run, *args):
    with tolerated(RunStopped, Boom):
        run.fit(*args)
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
    seen["RunFolder"]["monitored"].pop("seconds")
    return {
        "rows": run.module.bank.boundary.rows,
        "closed": run.module.bank.boundary.closed,
        "callbacks": seen,
        "metrics.csv": table(folder),
        "clients.npz": arrays(folder / "clients.npz"),
        "graphs.npz": arrays(folder / "graphs.npz"),
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "loops": {name: state for name, state in trainer.fit_loop.state_dict().items() if state},
        "hyperparameters": run.module.hyperparameters,
        "summary": {k: v for k, v in trainer.run.summary.items() if k != "seconds"},
    }


def same(a, b, where=""):
    """Assert that two nested results are equal to the last bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert sorted(map(str, a)) == sorted(map(str, b)), where
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
    """Every hook in rounds 0, 2, 3 by every way to stop; one in nineteen of them in a normal run."""
    number = 0
    for how in STOPS:
        for hook in ("on_train_start", *BEFORE, *AFTER):
            for round in (3,) if hook in EVALUATION else (0, 2, 3):
                number += 1
                rest = () if number % 19 == 0 else pytest.mark.slow
                yield pytest.param(how, hook, round, marks=rest, id=f"{how}-{hook}-{round}")


@pytest.mark.parametrize(("how", "hook", "round"), list(cases()))
def test_a_resumed_run_ends_like_an_uninterrupted_run(start, reference, how, hook, round):
    check(start, reference, how, hook, round)


@pytest.mark.parametrize(
    ("how", "hook"),
    [
        *(("error", "on_train_epoch_end"), ("save", "on_round_end"), ("save", "on_boundary")),
        pytest.param("error", "on_round_end", marks=pytest.mark.slow),
        pytest.param("error", "on_boundary", marks=pytest.mark.slow),
        pytest.param("save", "on_train_epoch_end", marks=pytest.mark.slow),
    ],
)
def test_a_run_may_stop_before_or_after_the_run_folder(start, reference, how, hook):
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
    if run.module.bank.boundary.round == 0 and how != "save":
        assert run.folder is None  # nothing to resume
        return
    file = run.folder / "checkpoints" / ("saved.ckpt" if how == "save" else "last.ckpt")
    if run.module.bank.boundary.round == 0:
        assert not file.exists()
        return
    status = "failed" if how == "error" else "stopped"
    assert how == "save" or run.trainer.run.summary.get("status", status) == status
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


QUICK_CATCHES = [("error", "on_validation_end"), ("ctrl-c", "on_validation_start"), ("save", "on_train_epoch_end")]


@pytest.mark.parametrize(
    ("how", "hook"),
    [
        pytest.param(how, hook, marks=[] if (how, hook) in QUICK_CATCHES else pytest.mark.slow)
        for how in ("error", "ctrl-c", "save")
        for hook in ("on_validation_start", "on_validation_end", "on_train_epoch_end")
    ],
)
def test_a_run_may_stop_again_during_its_repeated_evaluation(start, reference, how, hook):
    first = fit(start(Bomb("on_validation_end", 3, throw)))
    last = first.folder / "checkpoints" / "last.ckpt"
    again = fit(start(Bomb(hook, 3, STOPS[how])), last)
    file = last.with_name("saved.ckpt") if how == "save" else last
    resumed = fit(start(), file)
    assert again.folder == resumed.folder == first.folder
    same(reference, result(resumed))


AGAIN = ("on_train_start", "on_train_batch_start", "on_mix", "on_validation_end", "on_boundary")


@pytest.mark.parametrize(
    "hook", [h if h in AGAIN else pytest.param(h, marks=pytest.mark.slow) for h in ("on_train_start", *BEFORE, *AFTER)]
)
@pytest.mark.parametrize("round", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_fit_again_after_an_error_in_the_same_process(start, reference, hook, round):
    run = start(Bomb(hook, round, throw))
    with pytest.raises(Boom):
        run.fit()
    folder = run.folder
    run.fit()
    assert folder in (None, run.folder)  # without a complete round there was nothing to keep
    same(reference, result(run))


def test_fit_again_after_a_signal_in_the_same_process(start, reference):
    run = start(Bomb("on_select", 2, press_ctrl_c))
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RunStopped, match="SIGINT after 2 complete rounds"):
        run.fit()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    run.fit()
    same(reference, result(run))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_continuing_to_more_rounds_equals_one_long_fit(start, reference, rounds):
    run = start(rounds=rounds).fit()
    folder = run.folder
    assert run.trainer.current_epoch == run.trainer.global_step == rounds
    run.trainer.fit_loop.max_epochs = ROUNDS
    run.fit()
    assert folder in (None, run.folder)  # without a complete round there was nothing to keep
    same(reference, result(run))
    assert not (folder / "superseded").exists()


def test_a_new_trainer_starts_a_trained_module_anew(start, reference):
    run, longer = start(rounds=4).fit(), start()
    longer.module = run.module
    longer.fit()
    assert longer.folder != run.folder
    same(reference, result(longer))


def test_a_new_module_gets_a_new_folder(start):
    run = start(rounds=2).fit()
    folder, before = run.folder, table(run.folder)
    run.module = start().module
    run.fit()
    assert run.folder != folder
    assert table(folder) == before
    assert not (folder / "superseded").exists()


def test_resuming_an_earlier_round_in_the_same_process_saves_again(start, reference):
    run = start(Bomb("on_boundary", 2, save)).fit()
    run.fit(run.folder / "checkpoints" / "saved.ckpt")
    same(reference, result(run))
    assert read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["state_dict"]["bank.progress"].tolist() == [6, 1]


def test_resuming_a_finished_run_repeats_its_numbers_without_training(start, reference):
    run = start().fit()
    resumed = start().fit(run.folder / "checkpoints" / "last.ckpt")
    same(reference, result(resumed))
    assert resumed.trainer.run.summary["status"] == "finished"


def test_a_signal_in_the_last_round_lets_the_run_finish(start, reference):
    run = start(Bomb("on_validation_end", 5, terminate)).fit()
    same(reference, result(run))
    assert run.trainer.run.summary["status"] == "finished"


def test_a_second_ctrl_c_stops_immediately_and_keeps_the_boundary(start, reference):
    def twice(trainer):
        press_ctrl_c(trainer)
        press_ctrl_c(trainer)

    run = start(Bomb("on_compare", 2, twice))
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = start().fit(run.folder / "checkpoints" / "last.ckpt")
    same(reference, result(resumed))


def test_ctrl_c_before_training_is_a_keyboard_interrupt(start):
    class Impatient(RoundCallback):
        def on_fit_start(self, trainer, pl_module):
            press_ctrl_c(trainer)

    run = start(Impatient())
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_early_stopping_on_a_training_number_survives_a_resume(small_run):
    # with an evaluation every second round it looks at the training loss that was logged a round earlier
    def run(bomb=None):
        callbacks = [EarlyStopping("train_loss", patience=99), *([bomb] if bomb else [])]
        return small_run(ROUNDS, callbacks, check_val_every_n_epoch=2)

    whole, stopped = run().fit(), fit(run(Bomb("on_compare", 3, throw)))
    resumed = run().fit(stopped.folder / "checkpoints" / "last.ckpt")
    same(result(whole), result(resumed))


@pytest.mark.parametrize(
    "hook", ["on_mix", *(pytest.param(hook, marks=pytest.mark.slow) for hook in ("on_compare", "on_validation_end"))]
)
@pytest.mark.parametrize("other", ["friends", "friends by distance", "dpfl", "finetuned", "kept optimizers"])
def test_policies_with_memory_resume_too(start, small_run, other, hook):
    from dfl_lightning import callbacks as cb

    options = {"module": {"finetune_epochs": 1 if other == "finetuned" else 0}}
    policies = {
        "friends": lambda: [cb.Gossip(), cb.Uniform(), cb.Markov(0.3, 2.0), cb.FDMS()],
        "friends by distance": lambda: [cb.Gossip(), cb.Uniform(), cb.Markov(0.3, 2.0), cb.FDMS(similarity="distance")],
        "dpfl": lambda: [cb.DPFL(budget=2), cb.SampleWeighted(), cb.ExactCount(0.3)],
        "finetuned": lambda: None,
        "kept optimizers": lambda: None,
    }[other]
    if other == "kept optimizers":
        options["module"] |= {"keep_optimizer": True, "optimizer": torch.optim.Adam}
    whole = start(policies=policies(), **options).fit()
    stopped = fit(start(Bomb(hook, 3, throw), policies=policies(), **options))
    resumed = start(policies=policies(), **options).fit(stopped.folder / "checkpoints" / "last.ckpt")
    same(result(whole), result(resumed))


def moments():
    for number in range(60):
        yield pytest.param(number, marks=() if number < 2 else pytest.mark.slow)


@pytest.mark.parametrize("number", list(moments()))
def test_a_signal_at_a_random_moment(start, reference, number):
    draw = random.Random(number)
    signum = draw.choice([signal.SIGINT, signal.SIGTERM])
    timer = threading.Timer(draw.uniform(0.0, 0.12), os.kill, (os.getpid(), signum))

    class StartTheClock(RoundCallback):
        def on_train_start(self, trainer, pl_module):
            timer.start()

    old = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}  # it may come too late
    try:
        run = start(StartTheClock())
        with contextlib.suppress(RunStopped):
            run.fit()
        timer.join()
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)
    if run.module.bank.boundary.round:
        run = start().fit(run.folder / "checkpoints" / "last.ckpt")
        same(reference, result(run))
