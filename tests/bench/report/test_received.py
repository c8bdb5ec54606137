"""Bytes per run and models per round that clients receive, in the table of methods of a page."""

import json
import re
from statistics import mean, stdev

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents.seeds import dots
from dfl_lightning.bench.report.page.sentences.verdict import lines
from dfl_lightning.bench.report.page.tables import verdict_table
from dfl_lightning.bench.report.writing import write_report

MODELS = {"AFIND+": [[20, 10, 12], [16, 10, 10]], "Gossip": [[5, 5, 5]]}


@pytest.fixture
def cells(tmp_path, make_run):
    """Return the cells of the table by method and name."""

    def cells(without=()):
        runs = []
        for name, seeds in MODELS.items():
            for seed, models in enumerate(seeds):
                config = {"selection": {"class_path": name}}
                folder = make_run(tmp_path / f"{name}{seed}", np.full((3, 4), 0.5), seed=seed, config=config)
                table = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
                for line, number in zip(table, ["models_received", *map(str, models)], strict=True):
                    line.append(number)
                kept = [at for at, column in enumerate(table[0]) if column not in without]
                text = "\n".join(",".join(line[at] for at in kept) for line in table)
                (folder / "metrics.csv").write_text(f"{text}\n")
                runs.append((name, read_run(folder)))
        methods = find_methods([run for _, run in runs], names=[name for name, _ in runs])
        colours = {method.name: at for at, method in enumerate(methods)}
        html = verdict_table(lines(methods), colours, "", "", dots(methods))
        return {
            re.search(r'data-method="(.*?)"', row)[1]: {
                name: " ".join(re.sub("<.*?>", "", text).split())
                for name, text in re.findall(r"<td data-is='(\w+)'>(.*?)</td>", row)
            }
            for row in re.findall("<tr data-method.*?</tr>", html)
        }

    return cells


def test_models_are_means_over_rounds_and_seeds(cells):
    found = cells()
    seeds = [mean(models) for models in MODELS["AFIND+"]]
    assert found["AFIND+"]["models"] == f"{mean(seeds):.1f} ± {stdev(seeds):.1f}" == "13.0 ± 1.4"
    assert found["Gossip"]["models"] == "5.0"
    assert found["Gossip"]["received"] == "3.0"  # three rounds of a megabyte


def test_uncounted_values_have_no_column_instead_of_zeros(cells):
    found = cells(without=("models_received", "bytes_received"))
    assert all(not {"models", "received"} & set(row) for row in found.values())
    assert all("score" in row for row in found.values())


def decimals(text):
    """Return the digits after the point of the first number of a cell."""
    return len(re.match(r"[+−<\s]*[\d,]+\.?(\d*)", text)[1])


def test_a_column_has_equal_digits_after_the_point(tmp_path, make_run):
    runs = []
    for name, (level, received) in {
        "A": (0.943, 314334.0),
        "B": (3.012, 1e6),
        "Local": (54.3, 0),
        "D": (2, 9.3e6),
    }.items():
        config = {"selection": {"class_path": name}}
        runs.append(of_error(make_run(tmp_path / name, np.full((3, 4), level), received=received, config=config)))
    text = write_report(list(map(str, runs)), tmp_path / "page.html").read_text()
    rows = re.findall(r"<tr data-method=\"(\w+)\">(.*?)</tr>", text, re.DOTALL)
    assert [name for name, _ in rows] == ["A", "D", "B", "Local"]
    columns = {}
    for _, row in rows:
        for name, cell in re.findall(r"<td data-is='(\w+)'>(.*?)</td>", row):
            if number := re.search("<b>(.*?)</b>", cell):
                columns.setdefault(name, []).append(number[1])
    assert columns["score"] == ["0.943", "2.000", "3.012", "54.300"]
    assert columns["received"] == ["0.943", "27.900", "3.000", "0.000"]
    assert {name: {decimals(text) for text in texts} for name, texts in columns.items()} == {
        **{name: {3} for name in ("score", "worst", "best", "local", "received")},
        "seconds": {1},
    }


def of_error(run):
    """Make a run's score a root mean squared error instead of an accuracy."""
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace("test_acc", "test_rmse"))
    held = dict(np.load(run / "clients.npz"))
    np.savez(run / "clients.npz", rounds=held["rounds"], test_rmse=held["test_acc"])
    task = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
    (run / "summary.json").write_text(json.dumps({**json.loads((run / "summary.json").read_text()), "task": task}))
    return run
