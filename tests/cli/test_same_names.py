"""A user's own classes may be called like shipped ones: a short name means the shipped class, an import path one's own.

Everything runs in one process of its own, since a class that exists once is seen by every parser after it.
"""

import contextlib
import importlib
import io
import json
import os
import sys

import pytest
import yaml
from forked import Forked

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.classes.registry import GROUPS, LIBRARY_GROUPS, NESTED_GROUPS, shipped_classes
from dfl_lightning.utils.storage.shipped_files import shipped

OWN = '''
"""For each shipped class one of the same name that derives from it and one that derives from its family only."""
import inspect
import lightning.pytorch.loggers  # some loggers' classes cannot be made without their libraries
from dfl_lightning.cli.classes.registry import GROUPS, LIBRARY_GROUPS, shipped_classes

for group in (*GROUPS, *LIBRARY_GROUPS):
    for name, shipped in shipped_classes(group).items():
        vars()[name] = type(name, (shipped,), {"__module__": __name__, "__doc__": "My own."})
'''


def say_all():
    """Run all commands in a process where every shipped class has a namesake; print what each says."""
    os.environ["DFL_DEBUG"] = ""
    sys.path.insert(0, os.getcwd())
    importlib.import_module("own")
    print(json.dumps([said(words) for words in COMMANDS.values()]))


def said(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run("fit", words)
    return code, out.getvalue(), err.getvalue()


CONFIGS = sorted(shipped("configs"))
CPU = ["--trainer.accelerator", "cpu"]
NESTED = """
data:
  class_path: Digits
  init_args: {num_clients: 6, partition: {class_path: FlippedLabels, init_args: {base: {class_path: Shards}}}}
model: {network: MLP, optimizer: Adam, lr_scheduler: {class_path: StepLR, init_args: {step_size: 2}}}
trainer: {callbacks: [Timer, {class_path: EarlyStopping, init_args: {monitor: train_loss}}], accelerator: cpu}
selection: {init_args: {k: 2}}
dropout: {class_path: Bernoulli, init_args: {rate: 0.1}}
monitors: [FriendAccuracy, {class_path: NeighbourAccuracy}]
objective: FedProx
"""
COMMANDS = {
    **{name: ["--config", name, "--print_config"] for name in CONFIGS},
    "explained": ["--config", "afind", *CPU, "--explain"],
    "nested": ["--config", "nested.yaml", "--print_config"],
    "words": [
        *["--data", "Digits", "--model.network", "MLP", "--selection", "AFIND", "--model.optimizer=Adam"],
        *["--trainer.callbacks+=Timer", "--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "."],
        *["--monitors", "[FriendAccuracy]", "--print_config"],
    ],
    "own": ["--config", "afind", *CPU, "--selection", "own.Gossip", "--threshold", "null", "--print_config"],
    "own file": ["--config", "own.yaml", *CPU, "--print_config"],
    "help": ["--help"],
    "help of a class": ["--selection.help", "Gossip"],
    "all help": ["--help_all"],
    "mistake": ["--selection", "Gosip"],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run each command in a process where every shipped class has a namesake; return its code and output."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "own.py").write_text(OWN)
    (folder / "nested.yaml").write_text(NESTED)
    (folder / "own.yaml").write_text(
        "data: own.Digits\nmodel: {network: own.MLP}\nselection: {class_path: own.Gossip, init_args: {k: 3}}\n"
    )
    forked = Forked(f"{__file__}:say_all", ["dfl-fit"], folder)
    out, err = forked.communicate(timeout=600)
    assert forked.returncode == 0, err
    return dict(zip(COMMANDS, json.loads(out), strict=True))


def class_paths(value):
    if isinstance(value, dict):
        yield from ([value["class_path"]] if "class_path" in value else [])
        for inner in value.values():
            yield from class_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from class_paths(inner)


@pytest.mark.parametrize("name", [*CONFIGS, "nested", "words"])
def test_short_names_mean_the_shipped_classes(told, name):
    code, out, err = told[name]
    assert (code, err) == (0, "")
    found = list(class_paths(yaml.safe_load(out)))
    assert len(found) >= 5
    assert [path for path in found if path.startswith("own.")] == []


def test_nothing_is_lost_on_the_way_to_the_parser(told):
    config = yaml.safe_load(told["nested"][1])
    assert config["data"]["init_args"]["partition"]["init_args"]["base"]["class_path"] == "dfl_lightning.data.Shards"
    assert config["model"]["lr_scheduler"] == {
        "class_path": "torch.optim.lr_scheduler.StepLR",
        "init_args": {"step_size": 2, "gamma": 0.1, "last_epoch": -1},
    }
    assert config["trainer"]["callbacks"][1]["init_args"]["monitor"] == "train_loss"
    assert config["selection"] == {
        "class_path": "dfl_lightning.callbacks.Gossip",
        "init_args": {"k": 2, "within": None, "redraw": True},
    }


def test_import_path_means_the_users_class(told):
    for name in ("own", "own file"):
        code, out, err = told[name]
        assert (code, err) == (0, "")
        assert yaml.safe_load(out)["selection"]["class_path"] == "own.Gossip"
    assert yaml.safe_load(told["own file"][1])["data"]["class_path"] == "own.Digits"


def test_explain_and_help_work_as_usual(told):
    assert told["explained"][0] == 0, told["explained"][2]
    assert told["explained"][1].endswith("nothing was trained\n")
    for name in ("help", "help of a class", "all help"):
        assert told[name][0] == 0, told[name][2]
        assert told[name][2] == ""
    assert "--selection.k whole number|all" in told["help of a class"][1]


def test_misspelt_name_is_answered_as_usual(told):
    code, _, err = told["mistake"]
    assert code == 2
    assert err.startswith("dfl-fit: selection: there is no 'Gosip'; did you mean 'Gossip'? (selections are: AFIND, ")


def test_a_short_name_means_one_class_in_all_groups():
    found: dict[str, set[type]] = {}
    for group in (*GROUPS, *NESTED_GROUPS, *LIBRARY_GROUPS):
        for name, cls in shipped_classes(group).items():
            found.setdefault(name, set()).add(cls)
    assert [name for name, classes in found.items() if len(classes) > 1] == []
