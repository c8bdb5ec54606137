"""Output that is closed, full, or of an encoding without our characters."""

import errno
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.main import _loading

DFL = f"{sys.executable} -c 'from dfl_lightning.cli.main import fit; fit()'"


def shell(words, **environment):
    """Run a command in a shell of its own."""
    return subprocess.run(words, shell=True, capture_output=True, text=True, env={**os.environ, **environment})


def test_closed_output_is_refused_before_anything_is_loaded():
    done = shell(f"{DFL} --list >&-")
    assert (done.returncode, done.stderr) == (
        2,
        "dfl-fit: standard output is closed; send it to a file, or to /dev/null\n",
    )
    assert shell(f"{DFL} --list >&- 2>&-").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_full_output_gives_one_sentence(unbuffered):
    done = shell(f"{DFL} --help > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr == (
        "dfl-fit: standard output cannot be written (No space left on device); send it elsewhere, or to /dev/null\n"
    )


@pytest.mark.slow
def test_unencodable_characters_are_printed_as_ascii(tmp_path):
    words = f"cd {tmp_path} && {DFL} {' '.join(SMALL)} --explain 2>&1 <&-"
    done = shell(words, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stdout
    assert "AFIND + AdaptiveThreshold + Boltzmann - 6 clients - MLP (" in done.stdout
    assert done.stdout.isascii()


class Full(io.RawIOBase):
    """A file on a disk that is full after some bytes."""

    def __init__(self, room, file):
        self.room, self.file = room, file

    def writable(self):
        return True

    def fileno(self):
        return self.file.fileno()

    def write(self, data):
        if self.room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return len(data)


def test_run_whose_output_gets_full_can_be_resumed(tmp_path, monkeypatch, capsys):
    """The banner fits, the third round does not; the run ends as on any error, and its rounds are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    with monkeypatch.context() as patch, open(tmp_path / "disk", "wb") as file:
        full = Full(560, file)
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(full), encoding="utf-8"))
        code = cli.run("fit", [*SMALL, "--trainer.max_rounds", "6"])
        full.room = 10**6
        sys.stdout.flush()
    err = capsys.readouterr().err
    assert code == 2
    assert "standard output cannot be written (No space left on device)" in err
    (run,) = Path("runs/afind").iterdir()
    rounds = len((run / "metrics.csv").read_text().splitlines()) - 1
    assert 0 < rounds < 6
    assert cli.run("fit", ["--ckpt_path", str(run)]) == 0, capsys.readouterr().err
    assert len((run / "metrics.csv").read_text().splitlines()) == 7


def test_full_standard_error_does_not_end_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch, open(tmp_path / "disk", "wb") as file:
        full = Full(0, file)
        patch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(full), encoding="utf-8", line_buffering=True))
        assert cli.run("fit", ["--config", "nowhere"]) == 2
        full.room = 10**6
        sys.stderr.flush()


BEGINNINGS = [
    "AFIND + AdaptiveThreshold + Boltzmann · 8 clients · MLP (610 parameters each) · Digits, RotatedClusters",
    "objective Plain · SGD (lr 0.05, momentum 0.9) · ",
    "complete graph: 8 nodes, 28 links, connected",
    "round 1/2 · ",
    "round 2/2 · ",
    "",
    "    ",
    "test accuracy ",
    "neighbours found: precision ",
    "run: runs/afind/",
    "its page: dfl-report runs/afind/",
]


def test_loading_message_is_only_for_terminals(capsys):
    with _loading():
        pass
    assert capsys.readouterr() == ("", "")


def test_run_prints_only_our_lines_and_a_loading_message(tmp_path):
    """A pseudo-terminal on standard error has nothing else at the end than at the beginning."""
    ours, theirs = os.openpty()
    words = [*shlex.split(DFL), *SMALL, "--trainer.max_rounds", "2", "--data.num_clients", "8"]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=120)
    os.close(theirs)
    text = os.read(ours, 4096).decode()
    os.close(ours)
    assert (done.returncode, text) == (0, "loading torch and lightning ...\r\x1b[2K")
    for line, beginning in zip(done.stdout.splitlines(), BEGINNINGS, strict=True):
        assert line.startswith(beginning)
