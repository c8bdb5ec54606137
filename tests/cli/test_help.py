"""Answers of `--help`, `--list` and `--version`, which load no slow module."""

import subprocess
import sys
from pathlib import Path

import pytest

from dfl_lightning.cli import keys
from dfl_lightning.cli.classes.class_names import class_names
from dfl_lightning.cli.classes.registry import FAMILIES, GROUPS, first_line, shipped_classes

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
COMMANDS = ("fit", "validate", "test", "export", "study", "report")
STUDY = ("run", "status", "table", "report", "add-seeds", "list")
ASKED = [
    *((command, [flag]) for command in COMMANDS for flag in ("--help", "--version")),
    *((command, ["--list"]) for command in ("fit", "validate", "test")),
    ("fit", ["--config", "afind", "--help"]),
    *(("study", [verb, "--help"]) for verb in STUDY),
]
MAIN = """
import contextlib, io, sys, tomllib
from importlib import import_module
with open({project!r}, "rb") as file:
    commands = tomllib.load(file)["project"]["scripts"]
for command, *words in {asked!r}:
    sys.argv[1:] = words
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            module, _, start = commands["dfl-" + command].partition(":")
            getattr(import_module(module), start)()
        except SystemExit as left:
            assert not left.code, (command, words, left.code)
    assert said.getvalue(), (command, words)
    slow = {{"torch", "torchvision", "lightning", "sklearn", "networkx"}} & set(sys.modules)
    assert not slow, (command, words, slow)
"""


def test_nothing_slow_is_loaded_to_say_what_a_command_takes():
    asked = [(command, *words) for command, words in ASKED]
    done = subprocess.run(
        [sys.executable, "-c", MAIN.format(asked=asked, project=str(PROJECT))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("group", GROUPS)
def test_list_from_the_source_equals_that_of_the_classes(group):
    listed = class_names(keys.GROUPS[group])
    assert listed == {name: first_line(cls) for name, cls in shipped_classes(group).items()}


def test_the_table_of_keys_names_the_base_classes():
    assert {name: f"{base.__module__}.{base.__name__}" for name, base in FAMILIES.items()} == {
        name: f"dfl_lightning.callbacks.base.{base.partition('.')[2]}" for name, base in keys.FAMILIES.items()
    }
