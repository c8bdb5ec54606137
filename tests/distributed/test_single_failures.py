"""Failures of a single process: if it fails, is killed, hangs or stops, all processes end with one sentence."""

import os
import signal
import sys
import time

import pytest
from forked import Forked
from killing import starts

from dfl_lightning.checkpoints.io import rounds_in
from dfl_lightning.cli import main

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in Linux's /proc")

MINE = """
import errno
import os
import re
import time

from lightning.pytorch import Callback
from torchmetrics.classification import MulticlassF1Score

from dfl_lightning import UserError, callbacks, data
from dfl_lightning.checkpoints import io, sharded


def full(*where):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def does(how, rank, where):
    if os.environ.get("LOCAL_RANK", "0") != str(rank):
        return
    if how == "fails":
        raise ValueError("no such thing")
    if how == "refuses":
        raise UserError("my own disk is not there")
    if how == "breaks":
        where.module.bank.next_rows = None  # a bug of ours, as it seems
    if how == "is killed":
        os.kill(os.getpid(), 9)
    if how == "leaves":
        os._exit(3)
    if how == "sleeps":
        time.sleep(1000)
    if how == "lets no thread run":
        re.match("(a+)+$", "a" * 60 + "b")
    if how == "stops":
        where.should_stop = True
    if how == "has a full disk":
        io.write_atomically = sharded.write_atomically = full


class InARound(callbacks.Monitor):
    def __init__(self, how: str, rank: int):
        self.how, self.rank = how, rank

    def setup(self, trainer, pl_module, stage):
        self.module = pl_module

    def on_trained(self, round):
        if round.index == 2:
            does(self.how, self.rank, self)


class AfterARound(Callback):
    def __init__(self, how: str, rank: int):
        self.how, self.rank = how, rank

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 2:
            does(self.how, self.rank, trainer)


class Loading(data.Digits):
    def __init__(self, how: str, rank: int, **more):
        super().__init__(**more)
        self.how, self.rank = how, rank

    def load(self):
        does(self.how, self.rank, self)
        return super().load()


class Scoring(MulticlassF1Score):
    evaluations = 0

    def __init__(self, num_classes: int, how: str, rank: int):
        super().__init__(num_classes)
        self.how, self.rank = how, rank

    def compute(self):
        Scoring.evaluations += 1
        if Scoring.evaluations > 25:  # after the first round, not in the trials before it
            does(self.how, self.rank, self)
        return super().compute()
"""
WORDS = ["--config", "gossip", "--data.num_clients", "8", "--data.samples_per_client", "20", "--trainer.cohorts", "2"]
WORDS += ["--model.network.hidden", "[8]", "--trainer.max_rounds", "5", "--trainer.checkpoint_every", "1"]
WORDS += ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.enable_progress_bar", "false"]


def fit():
    """`dfl-fit` in a session of its own, whose further processes are forks too."""
    os.setsid()
    starts.load()
    main.fit()


@pytest.fixture
def run(tmp_path):
    """A run of two processes in which one does something: exit code, sentences and the processes that are left."""
    started = []

    def run(where, how, rank, *more):
        (tmp_path / "mine.py").write_text(MINE)
        option = {"InARound": "monitors", "AfterARound": "trainer.callbacks", "Loading": "data"}.get(where)
        words = [f"--{option}=mine.{where}", f"--{option}.how={how}", f"--{option}.rank={rank}"]
        if where == "Scoring":
            about = f"num_classes: 10, how: {how}, rank: {rank}"
            words = ["--model.metrics", f"[{{class_path: mine.Scoring, init_args: {{{about}}}}}]"]
        process = Forked(f"{__file__}:fit", ["fit", *WORDS, *words, *more], tmp_path, tmp_path / "said")
        started.append(process.pid)
        _, err = process.communicate()
        assert "Traceback" not in err, err
        said = [line.partition(": ")[2] for line in err.splitlines() if line.startswith("dfl")]
        return process.returncode, said, gone(process.pid)

    yield run
    for session in started:
        for pid in starts.processes_of(session):
            starts.send(pid, signal.SIGKILL)


def gone(session, seconds=5.0):
    """Return True if all processes end within the given time."""
    end = time.monotonic() + seconds
    while starts.processes_of(session) and time.monotonic() < end:
        time.sleep(0.02)
    return not starts.processes_of(session)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


FAILS = "mine.py, line 22, in does: ValueError: no such thing"
SLEEPS = "in mine.py, line 32, in does"


@pytest.mark.parametrize(
    ("where", "how", "rank", "code", "sentence"),
    [
        ("InARound", "fails", 1, 2, f"process 1 of the run: {FAILS}"),
        ("InARound", "is killed", 1, 2, "process 1 of the run has ended (signal 9)"),
        slow("InARound", "breaks", 1, 1, "process 1 of the run: a bug of dfl_lightning: TypeError"),
        slow("InARound", "fails", 0, 2, FAILS),
        slow("InARound", "is killed", 0, -9, None),
        slow("InARound", "leaves", 1, 2, "process 1 of the run has ended (exit code 3)"),
        slow("AfterARound", "refuses", 1, 2, "process 1 of the run: my own disk is not there"),
        slow("Loading", "fails", 0, 2, FAILS),
        slow("Loading", "fails", 1, 2, f"process 1 of the run: {FAILS}"),
    ],
)
def test_a_process_that_ends_alone_ends_all_and_is_named(run, where, how, rank, code, sentence):
    found, said, all_gone = run(where, how, rank)
    assert found == code
    assert len(said) == (sentence is not None)
    assert all(line.startswith(sentence) for line in said)
    assert all_gone


@pytest.mark.parametrize(
    ("where", "how", "rank", "place"),
    [
        ("InARound", "sleeps", 1, f" (process 1 is {SLEEPS})"),
        slow("InARound", "sleeps", 0, f" (process 0 is {SLEEPS})"),
        slow("InARound", "lets no thread run", 1, "; "),
        slow("Loading", "sleeps", 1, f" (process 1 is {SLEEPS})"),
        slow("Scoring", "sleeps", 1, f" (process 1 is {SLEEPS})"),
        slow("AfterARound", "sleeps", 0, f" (process 0 is {SLEEPS})"),
    ],
)
def test_a_stuck_process_is_named_after_the_given_time(run, where, how, rank, place):
    code, said, all_gone = run(where, how, rank, "--trainer.process_timeout", "4")
    assert code == 2
    [sentence] = said
    assert sentence.startswith(f"process {rank} of the run kept the others waiting for 4 seconds{place}")
    assert all_gone


@pytest.mark.slow
def test_a_first_process_that_lets_no_thread_run_is_killed(run):
    code, said, all_gone = run("InARound", "lets no thread run", 0, "--trainer.process_timeout", "4")
    assert code == -9
    [sentence] = said
    assert sentence.startswith("process 0 of the run kept the others waiting for 4 seconds; ")
    assert all_gone


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_stop_in_one_process_stops_all(run, tmp_path, rank):
    assert run("AfterARound", "stops", rank) == (0, [], True)
    [last] = tmp_path.glob("runs/*/*/checkpoints/last.ckpt")
    assert rounds_in(last) == 3


@pytest.mark.parametrize("kind", ["sharded", pytest.param("full", marks=pytest.mark.slow)])
def test_a_full_disk_of_the_first_process_ends_all(run, tmp_path, kind):
    code, said, all_gone = run("InARound", "has a full disk", 0, "--trainer.checkpoints", kind)
    assert code == 2
    [sentence] = said
    assert "cannot be written (No space left on device)" in sentence
    assert all_gone
