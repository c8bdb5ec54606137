"""The task of docs/tasks.md, run as it stands there, and the page's table."""

import inspect
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import mean_pinball_loss

from dfl_lightning import data, models, tasks
from dfl_lightning.cli.command import run
from dfl_lightning.metrics import ClientMetric
from dfl_lightning.metrics.names import BUILT_IN
from dfl_lightning.runs.reading import read_run

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
METRIC, EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_task_of_the_page_scores_in_the_targets_unit(tmp_path, monkeypatch, capsys):
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


def test_metric_of_the_page_says_where_it_is_undefined():
    given = {}
    exec(METRIC, given)
    metric = ClientMetric(given["Sensitivity"]())
    for targets, wanted in (([0, 1, 1], 0.5), ([0, 0, 0], math.nan)):
        metric.reset()
        metric.update(tasks.Classification(), torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor(targets))
        assert float(metric.compute()) == pytest.approx(wanted, nan_ok=True)


def test_the_page_lists_the_built_in_metrics():
    table = PAGE.partition("## More numbers")[2].partition("In Python")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:2] == "| "][1:]
    assert {row[0]: row[3] == "higher" for row in rows} == {
        name: kind.higher_is_better for name, kind in BUILT_IN.items()
    }


def test_command_of_the_page_forecasts_station_readings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (head,) = re.findall(r"```\n(station,.*?)\n", PAGE)
    (command,) = re.findall(r"^dfl-fit (.*sensors\.csv.*)$", PAGE, re.MULTILINE)
    hours = [
        f"station {station},2024-05-{1 + hour // 24:02}T{hour % 24:02}:00,{15 + station + 9 * math.sin(hour / 4)},0.5"
        for station in range(9)
        for hour in range(110)
    ]
    (tmp_path / "sensors.csv").write_text("\n".join([head, *hours]))
    small = "--trainer.max_rounds 1 --trainer.accelerator cpu --model.network.channels [4]"
    assert run("fit", [*shlex.split(command), *small.split()]) == 0, capsys.readouterr().err
    assert "test RMSE" in capsys.readouterr().out
    (folder,) = tmp_path.glob("runs/*/*")
    with np.load(folder / "split.npz") as split:
        assert set(split["writers"]) < {f"station {number}" for number in range(9)}
    assert 1 < read_run(folder).metrics["test_rmse"][-1] < 20  # degrees


def test_table_of_users_data_names_existing_classes():
    table = PAGE.partition("## From your data")[2].partition("Say that")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    named = {name for row in rows[2:] for name in re.findall(r"`(\w+)`", " ".join(row[2:5]))}
    assert named <= {*data.__all__, *tasks.__all__, *models.__all__}
    assert {name for name, kind in vars(tasks).items() if inspect.isclass(kind)} - {"Task", "MeanLoss"} <= named


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
