"""Every exit code that docs/running.md promises, from what leads to it."""

import importlib.metadata
import math
import re
import sys
from pathlib import Path

import pytest
from commands import SMALL

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.exports.export_command import main as export

PAGE = (Path(__file__).parents[2] / "docs" / "running.md").read_text(encoding="utf-8")
TINY = [*SMALL, "--trainer.max_rounds", "2"]
CALLBACKS = """
import os, signal
from lightning.pytorch import Callback

class Interrupt(Callback):
    def on_train_epoch_start(self, trainer, module):
        os.kill(os.getpid(), signal.SIGINT)

class Terminate(Callback):
    def on_train_epoch_start(self, trainer, module):
        os.kill(os.getpid(), signal.SIGTERM)

class Mistaken(Callback):
    def on_train_epoch_start(self, trainer, module):
        raise RuntimeError("a mistake in a user's hook")
"""


def callback(name):
    return ["fit", *TINY, "--trainer.callbacks", f"exit_code_callbacks.{name}"]


TABLE = [
    # what is typed; what it ends with
    (["fit", *TINY], 0),
    (["fit", *TINY, "--explain"], 0),
    (["fit", *TINY, "--print_config"], 0),
    (["fit", "--help"], 0),
    (["fit", "--list"], 0),
    (["fit", "--version"], 0),
    (["fit", "--selection.help", "AFIND"], 0),
    (["export", "--version"], 0),
    (["test", "RUN"], 0),
    (["export", "RUN"], 0),
    (["fit"], 2),
    (["fit", *TINY, "--no.such.option", "1"], 2),
    (["fit", *TINY, "--selection.nu", "high"], 2),
    (["fit", *TINY, "--data.num_clients", "0"], 2),
    (["fit", "--config", "nowhere.yaml"], 2),
    (["fit", *TINY, "--topology", "nowhere.json"], 2),
    (["fit", *TINY, "--ckpt_path", "nowhere.ckpt"], 2),
    (["test", "nowhere"], 2),
    (["validate", "RUN"], 2),  # it kept no validation data
    (["export", "nowhere"], 2),
    (["export", "--no-such-option"], 2),
    (callback("Mistaken"), 2),
    (callback("Interrupt"), 130),
    (callback("Terminate"), 143),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert cli.run("fit", [*TINY, "--trainer.default_root_dir", str(folder)]) == 0
    (run,) = folder.glob("afind/*")
    return run


def code_of(words):
    command, *words = words
    try:
        return export(words) if command == "export" else cli.run(command, words)
    except SystemExit as left:  # argparse
        return left.code


@pytest.mark.parametrize(("words", "code"), TABLE, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_each_ending_has_its_exit_code(words, code, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "exit_code_callbacks", raising=False)
    (tmp_path / "exit_code_callbacks.py").write_text(CALLBACKS)
    words = [word.replace("RUN", str(finished)) for word in words]
    assert code_of(words) == code
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == (code != 0), said


def test_bug_of_the_library_exits_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_build_and_run", math.sqrt)  # called with three arguments, from within the library
    assert cli.run("fit", TINY) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("dfl-fit: a bug of dfl_lightning: TypeError: math.sqrt()")
    assert said.endswith("(DFL_DEBUG=1 shows where)")


def test_closed_output_exits_with_141(tmp_path, monkeypatch):
    def broken(*words):
        raise BrokenPipeError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_build_and_run", broken)
    monkeypatch.setattr(cli, "drop_output", lambda: None)
    assert cli.run("fit", TINY) == 141


def test_the_page_names_these_codes():
    (table,) = re.findall(r"## Exit codes\n\n\| code \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    named = {int(code) for row in table.splitlines() for code in re.findall(r"\d+", row.split("|")[1])}
    assert named == {0, 1, 2, 130, 143, 141}


@pytest.mark.parametrize("command", ["fit", "export"])
def test_the_version_is_that_of_the_package(command, capsys):
    code_of([command, "--version"])
    installed = importlib.metadata.version("dfl-lightning")
    assert capsys.readouterr().out.startswith(f"dfl_lightning {installed} (torch ")
