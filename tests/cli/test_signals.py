"""Ctrl-C and SIGTERM to a real command: exit codes, one sentence, and a run that resumes unchanged."""

import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from forked import Forked

from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli import command as cli

SMALL = """
seed_everything: 0
trainer: {max_rounds: 200, accelerator: cpu, default_root_dir: out, check_val_every_n_epoch: 3}
model:
  network: {class_path: MLP, init_args: {hidden: [8]}}
  local_epochs: 1
  batch_size: 16
  optimizer: {class_path: SGD, init_args: {lr: 0.1}}
data: {class_path: Digits, init_args: {num_clients: 6, samples_per_client: 40, val_fraction: 0.2}}
dropout: {class_path: Bernoulli, init_args: {rate: 0.3}}
selection: AFIND
threshold: AdaptiveThreshold
aggregation: Boltzmann
"""


@pytest.fixture(autouse=True)
def config(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Start `dfl-fit` in an empty folder."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started = []

    def command(*words):
        started.append(Forked("dfl_lightning.cli.main:fit", ["dfl-fit", "--config", "small.yaml", *words], tmp_path))
        return started[-1]

    yield command
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Run a command in this process, which is quicker: its exit code, output and errors."""

    def here(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = cli.run("fit", ["--config", "small.yaml", *words])
        return code, *capsys.readouterr()

    return here


def folders(tmp_path):
    return list(tmp_path.glob("out/small/*"))


def wait_for_round(process, tmp_path, number):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for folder in folders(tmp_path):
            table = folder / "metrics.csv"
            if table.is_file() and len(table.read_text().splitlines()) > number + 1:
                return folder
        time.sleep(0.005)
    raise AssertionError(f"no round {number}: {process.communicate()}")


def table(folder):
    header, *lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    return [{k: v for k, v in zip(header, line, strict=True) if k != "seconds"} for line in lines]


def stopped(command, tmp_path, signum, after=2):
    process = command()
    folder = wait_for_round(process, tmp_path, after)
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    return folder, process.returncode, out, err


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_saves_the_run_which_resumes_unchanged(command, here, tmp_path, signum, code):
    folder, returned, _, err = stopped(command, tmp_path, signum)
    assert returned == code
    done = len(table(folder))
    assert 2 < done < 200
    assert err.count("\n") == 1
    assert f"stopped by {signum.name} after {done} complete rounds" in err
    last = folder / "checkpoints" / "last.ckpt"
    assert read_checkpoint(last)["state_dict"]["bank.progress"].tolist() == [done, 1]

    rounds = str(done + 3)
    returned, out, err = here("--trainer.max_rounds", rounds, "--ckpt_path", str(last.relative_to(tmp_path)))
    assert (returned, err) == (0, "")
    assert folders(tmp_path) == [folder]
    assert f"run: {folder.relative_to(tmp_path)}" in out
    assert here("--trainer.max_rounds", rounds, "--trainer.default_root_dir", "whole")[0] == 0
    (other,) = tmp_path.glob("whole/small/*")
    assert table(folder) == table(other)
    for name in ("clients.npz", "graphs.npz"):
        with np.load(folder / name) as mine, np.load(other / name) as theirs:
            assert mine.files == theirs.files
            assert all(np.array_equal(mine[k], theirs[k], equal_nan=mine[k].dtype.kind == "f") for k in mine.files)
    rows = [read_checkpoint(f / "checkpoints" / "last.ckpt")["state_dict"]["bank.rows.models"] for f in (folder, other)]
    assert rows[0].equal(rows[1])


STOP = """
import os, signal
from lightning.pytorch import Callback


class Stop(Callback):
    '''Ctrl-C in the third round, once.'''

    armed = True

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 2 and Stop.armed:
            Stop.armed = False
            os.kill(os.getpid(), signal.SIGINT)
"""
ODD = "my  runs, it's $HOME;"


def test_the_sentence_after_ctrl_c_can_be_typed(here, tmp_path, capsys):
    (tmp_path / "own.py").write_text(STOP)
    words = ["--trainer.default_root_dir", ODD, "--trainer.max_rounds", "5"]
    code, _, err = here(*words, "--trainer.callbacks", "own.Stop")
    assert code == 130
    program, *typed = shlex.split(err.rstrip("\n").partition("; continue with: ")[2])
    assert program == "dfl-fit"
    (folder,) = (tmp_path / ODD).glob("small/*")
    assert cli.run("fit", typed) == 0, capsys.readouterr().err
    assert [row["round"] for row in table(folder)] == [str(r) for r in range(5)]
    assert list(tmp_path.glob("*/small/*")) == [folder]


def test_without_checkpoints_no_resume_is_suggested(here, tmp_path):
    (tmp_path / "own.py").write_text(STOP)
    code, _, err = here("--trainer.enable_checkpointing", "false", "--trainer.callbacks", "own.Stop")
    assert code == 130
    assert err.rstrip().endswith("complete rounds; no checkpoint was kept (trainer.enable_checkpointing=false)")


def test_closed_pipe_is_not_reported_as_a_bug(tmp_path):
    words = [sys.executable, "-c", "from dfl_lightning.cli.main import fit; fit()", "--list"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE
