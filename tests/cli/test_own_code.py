"""A run keeps the source of the user's own classes, and later commands say when it is another one."""

import hashlib
import importlib
import sys

import pytest
import yaml

from dfl_lightning.cli import command as cli

MINE = """
import own_part
from dfl_lightning.callbacks import Gossip


class Mine(Gossip):
    def on_compare(self, round):
        round.scores = own_part.SIGN * round.draw_uniform(round.candidates, "mine")
"""
CONFIG = """
trainer: {max_rounds: 1, accelerator: cpu}
model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
data: {class_path: Digits, init_args: {num_clients: 5, samples_per_client: 20}}
selection: own_mine.Mine
"""


@pytest.fixture
def dfl(here, capsys):
    """Run a command as in a process of its own; return what it prints."""
    (here / "own_mine.py").write_text(MINE)
    (here / "own_part.py").write_text("SIGN = 1\n")
    (here / "my.yaml").write_text(CONFIG)

    def forget():
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]

    def dfl(*words, command="fit"):
        forget()
        assert cli.run(command, list(map(str, words))) == 0
        said = capsys.readouterr()
        return said.out + said.err

    yield dfl
    forget()


def kept(run):
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.mark.filterwarnings("default:.*is of a run with other code")
def test_a_run_keeps_its_code_and_tells_of_another_one(dfl, here):
    assert "other code" not in dfl("--config", "my.yaml")
    (run,) = here.glob("runs/my/*")
    first = {name: hashlib.sha256((here / f"{name}.py").read_bytes()).hexdigest() for name in ("own_mine", "own_part")}
    assert kept(run)["code"] == first
    assert {file.name: file.read_text() for file in (run / "code").iterdir()} == {
        "own_mine.py": MINE,
        "own_part.py": "SIGN = 1\n",
    }
    assert "other code" not in dfl(run, command="test")

    (here / "own_part.py").write_text("SIGN = -1\n")
    other = "is of a run with other code: own_part has changed"
    assert other in dfl("--config", run / "config.yaml", "--explain")
    assert f"{other}; that of the run is in {run / 'code'}" in dfl(run, command="test")
    assert other in dfl("--ckpt_path", run, "--trainer.max_rounds", 2, "--fork")
    assert kept(run)["code"] == first

    assert other in dfl("--ckpt_path", run, "--trainer.max_rounds", 2)
    now = {**first, "own_part": hashlib.sha256(b"SIGN = -1\n").hexdigest()}
    assert kept(run)["code"] == now
    (step,) = kept(run)["changed_on_resume"]
    assert step == {"round": 1, "changed": {"code.own_part": [first["own_part"], now["own_part"]]}}
    (former,) = run.glob("superseded/*/code/own_part.py")
    assert (former.read_text(), (run / "code" / "own_part.py").read_text()) == ("SIGN = 1\n", "SIGN = -1\n")
    fork = next(path for path in here.glob("runs/my/*") if path != run)
    assert kept(fork)["forked_from"]["changed"] == step["changed"]


def test_a_run_of_shipped_classes_has_no_code(dfl, here):
    dfl("--config", "my.yaml", "--selection", "Gossip")
    (run,) = here.glob("runs/my/*")
    assert "code" not in kept(run)
    assert not (run / "code").exists()
