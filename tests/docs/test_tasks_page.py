"""The task of docs/tasks.md, run as it stands there, and the page's table."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.metrics import mean_pinball_loss

from dfl_lightning import data, tasks
from dfl_lightning.cli.command import run
from dfl_lightning.report.reading import read_run

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_task_of_the_page_runs_from_the_users_own_file_in_the_targets_unit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(EXAMPLE.strip().splitlines()) <= 30
    (tmp_path / "mine.py").write_text(EXAMPLE, encoding="utf-8")
    (words,) = re.findall(r"`(--model\.task mine[^`]*)`", PAGE)
    small = "--trainer.max_rounds 2 --trainer.accelerator cpu --model.optimizer.lr 1e-12"
    assert run("fit", ["--config", "regression", *words.split(), *small.split()]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "test pinball" in shown
    (folder,) = tmp_path.glob("runs/*/*")
    found = read_run(folder)
    wanted = {"name": "Quantile", "score": "pinball", "higher_is_better": False, "percent": False}
    assert found.summary["task"] == wanted
    saved = yaml.safe_load((folder / "config.yaml").read_text())["model"]["task"]
    assert (saved["class_path"], saved["init_args"]["q"]) == ("mine.Quantile", 0.8)
    table = data.Vectors(num_clients=10, split=str(folder / "split.npz"))
    table.setup()
    y = table.source.labels.flatten().numpy()
    # models that hardly train stay near a guess within a deviation or two of the mean
    guess = [mean_pinball_loss(y[part], np.full(len(part), y.mean()), alpha=0.8) for part in table.client_split.test]
    assert found.metrics["test_pinball"][-1] == pytest.approx(np.mean(guess), rel=0.5)
    assert (found.clients["test_coverage"][-1] <= 1).all()


def test_the_table_names_every_task_its_numbers_and_its_direction():
    kinds = {name: kind for name, kind in vars(tasks).items() if inspect.isclass(kind) and issubclass(kind, tasks.Task)}
    rows = {
        row[0]: row for line in PAGE.splitlines() if line.startswith("| `") for row in [line.strip("| ").split(" | ")]
    }
    assert {name.strip("`") for name in rows} == set(kinds) - {"Task"}
    for name, row in rows.items():
        kind = kinds[name.strip("`")]
        assert tuple(re.findall(r"`(\w+)`", row[3])) == kind.numbers
        assert row[4] == ("higher" if kind.higher_is_better else "lower")
