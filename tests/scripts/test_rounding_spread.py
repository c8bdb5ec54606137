"""The spread by rounding: the change of the first models, and the numbers that are printed."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from dfl_lightning.bank.boundary import Boundary
from dfl_lightning.cli.command import run

SHORT = ["--config", "panm_grad", "--trainer.max_rounds=2", "--data.num_clients=8"]


@pytest.fixture(scope="module")
def script(load):
    return load("rounding_spread")


def started(script, draw, round=0):
    models = torch.randn(1, 10_000, dtype=torch.float64).expand(3, -1).clone()
    rows = {"models": models, "initial": models.clone(), "zeros": torch.zeros_like(models)}
    module = SimpleNamespace(bank=SimpleNamespace(boundary=Boundary(round, rows, {}, {}, {})))
    script.RoundedStart(draw).on_train_start(None, module)
    return models, module.bank.boundary.rows


def test_first_models_change_alike_in_their_last_digits(script):
    models, rows = started(script, 3)
    relative = rows["models"] / models - 1
    assert float(relative.std()) == pytest.approx(1e-7, rel=0.05)
    assert float(relative.mean()) == pytest.approx(0, abs=5e-9)
    assert (rows["models"] == rows["models"][0]).all()
    assert torch.equal(rows["initial"], rows["models"])
    assert not rows["zeros"].any()


@pytest.mark.parametrize(("draw", "round"), [(0, 0), (3, 1)])
def test_unchanged_runs_and_resumed_ones_keep_their_rows(script, draw, round):
    models, rows = started(script, draw, round)
    assert torch.equal(rows["models"], models)


def test_spread_begins_with_the_run_itself(script, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["rounding_spread.py", "--runs=2", "--column=train_loss", *SHORT])
    script.main()
    said = capsys.readouterr().out
    assert run("fit", SHORT) == 0
    (file,) = tmp_path.rglob("metrics.csv")
    unchanged = 100 * float(pd.read_csv(file).train_loss.iloc[-1])
    assert f"unchanged: {unchanged:.2f} %" in said
    changed = [float(number) for number in re.search(r"changed: ([\d. ]+)\nmean", said).group(1).split()]
    assert len(changed) == 2
    assert changed == pytest.approx([unchanged] * 2, rel=1e-3)


def test_a_large_change_moves_the_score(script, monkeypatch):
    monkeypatch.setattr(script, "RELATIVE", 0.3)
    unchanged, changed = script.scores(SHORT, 1, "train_loss")
    assert abs(changed - unchanged) > 1
