"""A user's classes in the folder of a config: they are found from anywhere, and nothing else of that folder is."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.arguments import split, with_configs
from dfl_lightning.cli.classes.class_folders import find_class_folders
from dfl_lightning.utils.errors import UserError

MINE = """
from dfl_lightning.callbacks import Gossip, Monitor
from torch.nn import CrossEntropyLoss

from beside_helpers import NUMBER


class Two(Gossip):
    def __init__(self):
        super().__init__(k=NUMBER)


class Loud(Monitor):
    def on_round_end(self, round):
        round.log("loud", 7)


class Loss(CrossEntropyLoss):
    pass
"""
CONFIG = """
trainer: {max_rounds: 2, accelerator: cpu}
model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
data: {class_path: Digits, init_args: {num_clients: 5, samples_per_client: 20}}
selection: beside_mine.Two
monitors: [beside_mine.Loud]
"""


@pytest.fixture
def here(here):
    """Make a working folder with a folder `exp` that has a config and a class; forget its imports afterwards."""
    (here / "exp").mkdir()
    (here / "exp" / "beside_mine.py").write_text(MINE)
    (here / "exp" / "beside_helpers.py").write_text("NUMBER = 2\n")
    (here / "exp" / "my.yaml").write_text(CONFIG)
    yield here
    forget()


def forget():
    for name in [name for name in sys.modules if name.startswith("beside_")]:
        del sys.modules[name]


@pytest.fixture
def dfl(here, capsys, monkeypatch):
    """Run a command as in a process of its own; return the run folder that it made, or None."""

    def _dfl(*words, command="fit", code=0):
        before = set(here.glob("runs/*/*"))
        forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            found = cli.run(command, list(map(str, words)))
        said = capsys.readouterr()
        assert found == code, said.err
        return next(iter(set(here.glob("runs/*/*")) - before), None) if not code else said.err

    return _dfl


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def folders_of(run):
    return yaml.safe_load((run / "config.yaml").read_text()).get("class_folders")


# --- found ------------------------------------------------------------------------------------------------------------
def test_class_in_the_configs_folder_is_found_with_its_imports(dfl):
    run = dfl("--config", "exp/my.yaml")
    assert [row["neighbours"] for row in rows(run)] == ["2", "2"]
    assert [row["loud"] for row in rows(run)] == ["7", "7"]
    assert folders_of(run) == ["exp"]


def test_the_runs_own_config_finds_it_again(dfl):
    run = dfl("--config", "exp/my.yaml")
    again = dfl("--config", run / "config.yaml")
    assert rows(again) == rows(run)
    assert folders_of(again) == ["exp"]


@pytest.mark.parametrize("config", [[], ["--config", "exp/my.yaml"]])
def test_a_resumed_run_and_an_evaluation_find_it_again(dfl, here, config):
    run = dfl("--config", "exp/my.yaml")
    whole = dfl("--config", "exp/my.yaml", "--trainer.max_rounds", 3)
    assert dfl(*config, "--ckpt_path", run, "--trainer.max_rounds", 3) is None
    assert rows(run) == rows(whole)
    assert "changed_on_resume" not in yaml.safe_load((run / "config.yaml").read_text())
    assert dfl(run, command="test") is None


def test_absolute_path_of_a_config_works_from_another_folder(dfl, here, monkeypatch):
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    dfl("--config", here / "exp" / "my.yaml")
    (run,) = (here / "elsewhere").glob("runs/*/*")
    assert folders_of(run) == [str(here / "exp")]


def test_classes_in_config_parts_losses_and_options_are_found(dfl, here):
    text = CONFIG.replace("selection: beside_mine.Two", "selection: parts/sel.yaml").replace("[beside_mine.Loud]", "[]")
    (here / "exp" / "parts").mkdir()
    (here / "exp" / "parts" / "sel.yaml").write_text("class_path: beside_mine.Two\n")
    (here / "exp" / "my.yaml").write_text(text)
    assert [row["neighbours"] for row in rows(dfl("--config", "exp/my.yaml"))] == ["2", "2"]
    (here / "exp" / "my.yaml").write_text(
        text.replace("parts/sel.yaml", "Gossip").replace("local_", "loss: beside_mine.Loss, local_")
    )
    assert folders_of(dfl("--config", "exp/my.yaml")) == ["exp"]
    (here / "exp" / "my.yaml").write_text(text.replace("parts/sel.yaml", "Gossip"))
    assert folders_of(dfl("--config", "exp/my.yaml")) is None
    run = dfl("--config", "exp/my.yaml", "--selection", "beside_mine.Two")
    assert folders_of(run) == ["exp"]


def test_folders_can_be_named(dfl, here):
    (here / "plain.yaml").write_text(CONFIG)
    assert "no module named 'beside_mine'" in dfl("--config", "plain.yaml", code=2)
    assert folders_of(dfl("--config", "plain.yaml", "--class_folders", "[exp]")) == ["exp"]
    (here / "plain.yaml").write_text(CONFIG + "class_folders: [exp]\n")
    assert folders_of(dfl("--config", "plain.yaml")) == ["exp"]


@pytest.mark.slow
def test_processes_that_a_run_starts_find_it_too(dfl, here):
    words = ["--config", "exp/my.yaml", "--trainer.devices", "2", "--trainer.cohorts", "2"]
    command = [str(Path(sys.executable).with_name("dfl-fit")), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    (run,) = here.glob("runs/*/*")
    assert [row["loud"] for row in rows(run)] == ["7", "7"]


# --- not found --------------------------------------------------------------------------------------------------------
def test_the_working_folder_goes_first(dfl, here):
    (here / "beside_mine.py").write_text(MINE.replace("from beside_helpers import NUMBER", "NUMBER = 3"))
    run = dfl("--config", "exp/my.yaml")
    assert [row["neighbours"] for row in rows(run)] == ["3", "3"]
    assert folders_of(run) is None


def search(*words):
    before = list(sys.path)
    given = with_configs(split(words))
    added = find_class_folders(given)[len(given) :]
    return [f"--{word.option}={word.value}" for word in added], sys.path[len(before) :]


def test_nothing_is_searched_where_no_class_is_named(here):
    (here / "exp" / "plain.yaml").write_text(
        CONFIG.replace("beside_mine.Two", "Gossip").replace("beside_mine.Loud", "")
    )
    (here / "exp" / "pandas.py").write_text("raise SystemExit('loaded')\n")
    assert search("--config", "exp/plain.yaml") == ([], [])
    assert search("--config", "afind", "--selection", "torch.nn.Linear") == ([], [])


@pytest.mark.parametrize("name", ["torchmetrics", "yaml", "json", "sys", "dfl_lightning"])
def test_installed_modules_go_before_those_of_a_configs_folder(here, name):
    (here / "exp" / f"{name}.py").write_text("raise SystemExit('loaded')\n")
    (here / "exp" / "my.yaml").write_text(CONFIG.replace("beside_mine", name))
    assert search("--config", "exp/my.yaml") == ([], [])


def test_folder_of_that_name_is_not_a_module(here):
    (here / "beside_mine").mkdir()
    assert search("--config", "exp/my.yaml") == (['--class_folders=["exp"]'], [str(here / "exp")])


def test_a_config_in_the_working_folder_adds_nothing(here):
    (here / "my.yaml").write_text(CONFIG)
    (here / "beside_mine.py").write_text(MINE)
    assert search("--config", "my.yaml") == ([], [])
    assert search("--config", str(Path("my.yaml").absolute())) == ([], [])


@pytest.mark.parametrize("value", ["exp", "{a: exp}", "[1]", "["])
def test_folders_are_a_list_of_texts(here, value):
    with pytest.raises(UserError, match=r"--class_folders is a list of folders, \[exp\] for example, not "):
        search("--config", "exp/my.yaml", "--class_folders", value)
