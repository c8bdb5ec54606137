"""`scripts/digests.py`: what it tells of two versions, and its networks."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def digests(load):
    return load("digests")


def left(number=0.5, **more):
    """Make contents of a finished run."""
    return {"models": {"rows": torch.tensor([1.0, number])}, "policies": {"a": None, "b": [1, "word"]}, **more}


@pytest.mark.slow
def test_a_digest_is_the_same_in_every_process():
    """Values that are not numbers count too, for example None."""
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import digests
digests.what_is_left = lambda place: {"policies": {"a": None, "b": [1, "word", (2.5, {"c": None})]}}
print(digests.digest(Path()))
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, str(SCRIPTS)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(2)
    }
    assert len(printed) == 1


def test_differences_are_told_apart(digests, monkeypatch, tmp_path, capsys):
    contents = {
        "same": (left(), left()),
        "a bit": (left(), left(float(np.nextafter(np.float32(0.5), np.float32(1))))),
        "a type": (left(), {**left(), "models": {"rows": torch.tensor([1.0, 0.5], dtype=torch.float64)}}),
        "a word": (left(), {**left(), "policies": {"a": None, "b": [1, "other"]}}),
        "something new": (left(), left(more=3)),
        "seconds": (left(seconds=1.0), left(seconds=2.0)),
    }
    for folder in ("one", "other"):
        for name in contents:
            (tmp_path / folder / name).mkdir(parents=True)
    monkeypatch.setattr(digests, "what_is_left", lambda p: contents[p.name][p.parent.name == "other"])
    alike = {
        name: digests.digest(tmp_path / "one" / name) == digests.digest(tmp_path / "other" / name) for name in contents
    }
    assert [name for name, same in alike.items() if same] == ["same", "seconds"]
    assert digests.compare_all(tmp_path / "one", tmp_path / "other") == 1
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines()[:-1])
    assert {name for name, words in lines.items() if words == "the same bits"} == {"same", "seconds"}
    assert lines["a bit"] == "/models/rows apart by 6.0e-08"
    assert lines["something new"] == "/more new"
    (tmp_path / "one" / "only here").mkdir()
    assert digests.compare_all(tmp_path / "one", tmp_path / "other") == 1
    assert "only here: in one of them only" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Normed", "Varied"])
def test_its_networks_can_be_stacked(load, name):
    network = getattr(load("digest_networks"), name)()
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    StackedNetwork(network)
