"""The costs of reaching a score, against what the runs' metrics.csv say, in a browser and in the data of the page."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents.reaching import reaching_of_page
from dfl_lightning.bench.report.writing import write_report

LEVELS = {
    "Fast": {0: [0.3, 0.7, 0.65, 0.9], 1: [0.5, 0.71, 0.8, 0.8]},
    "Slow": {0: [0.2, 0.4, 0.6, 0.7], 1: [0.2, 0.3, 0.35, 0.4]},
}
"""Mean scores of a run after each round, by method and seed."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run):
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, of_seeds in LEVELS.items():
        for seed, means in of_seeds.items():
            scores = np.array(means)[:, None] + np.array([-0.1, 0.1])
            config = {"selection": {"class_path": name}}
            received = 1e6 * (1 + seed)
            found[name, seed] = make_run(folder / f"{name} {seed}", scores, seed=seed, received=received, config=config)
    return found


def spent_until(run, level):
    """Return the rounds and megabytes until a run's score reached a level; None if it did not."""
    received = 0.0
    with (run / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            received += float(row["bytes_received"]) / 1e6
            if 100 * float(row["test_acc"]) >= level - 1e-9:
                return int(row["round"]) + 1, received
    return None


def test_the_table_follows_the_typed_score(runs, tmp_path, open_page):
    seen = open_page(write_report([f"{name}={run}" for (name, _), run in runs.items()], tmp_path / "page.html"))
    field, rows = seen.page.locator("#reach-0"), seen.page.locator("table.reaching tbody tr")
    assert field.input_value() == "40"  # which both methods reach with all seeds
    assert seen.page.get_by_role("link", name="Reaching a score").get_attribute("href") == "#reaching"
    for level in (40.0, 70.0, 70.1, 85.0, 95.0):
        field.fill(str(level))
        said = seen.page.locator("table.reaching caption").inner_text()
        assert said == f"Until test accuracy is {level:g} % or more"
        for name, words in zip(LEVELS, rows.all_inner_texts(), strict=True):
            found = [spent for seed in (0, 1) if (spent := spent_until(runs[name, seed], level)) is not None]
            cells = words.split("\t")
            assert cells[0] == name
            reached = [seed for seed in (0, 1) if spent_until(runs[name, seed], level) is not None]
            assert cells[3] == f"{len(found)} of 2{f' seed {reached[0]}' if len(reached) == 1 else ''}"
            for cell, values in zip(cells[1:3], zip(*found, strict=True) if found else ((), ()), strict=True):
                if not values:
                    assert cell == "–"
                    continue
                if len(values) < 2:  # no mean of the seeds that reach it alone
                    assert float(cell.removesuffix(" 1 of 2 seeds")) == pytest.approx(values[0], abs=0.051)
                    assert cell.endswith(" 1 of 2 seeds")
                    continue
                mean, *around = map(float, cell.split(" ± "))
                assert mean == pytest.approx(np.mean(values), abs=0.051)
                assert around[0] == pytest.approx(np.std(values, ddof=1), abs=0.051)
    assert seen.console == []


def test_tooltip_and_csv_name_the_seeds_that_reach_it(runs, tmp_path, open_page):
    seen = open_page(write_report([f"{name}={run}" for (name, _), run in runs.items()], tmp_path / "page.html"))
    seen.page.locator("#reach-0").fill("70")
    said = [cell.get_attribute("title") for cell in seen.page.locator("table.reaching td:last-child").all()]
    assert said == ["reached by seeds 0, 1", "reached by seed 0; not reached by seed 1"]
    with seen.page.expect_download() as download:
        seen.page.locator("[data-reach]").click()
    assert download.value.suggested_filename == "reaching-a-score.csv"
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [(row["method"], int(row["seed"])) for row in rows] == list(runs)
    for row in rows:
        spent = spent_until(runs[row["method"], int(row["seed"])], 70.0)
        assert row["reached"] == ("no" if spent is None else "yes")
        assert float(row["test accuracy, %"]) == 70
        found = (row["rounds"], row["received, MB a client"])
        assert found == ("", "") if spent is None else tuple(map(float, found)) == pytest.approx(spent)
    assert seen.console == []


def test_megabytes_have_equal_digits_after_the_point(tmp_path, make_run, open_page):
    named = []
    for name, received in (("A", 0.4e6), ("B", 3e6)):
        config = {"selection": {"class_path": name}}
        named.append(str(make_run(tmp_path / name, np.full((2, 3), 0.5), received=received, config=config)))
    seen = open_page(write_report(named, tmp_path / "page.html"))
    assert seen.page.locator("table.reaching td:nth-child(3)").all_inner_texts() == ["0.400", "3.000"]


def test_an_error_is_reached_from_above(tmp_path, make_run):
    run = make_run(tmp_path / "run", np.array([[9.0], [4.0], [5.0], [2.5]]))
    for name in ("metrics.csv", "clients.npz"):
        if name == "metrics.csv":
            (run / name).write_text((run / name).read_text().replace("test_acc", "test_rmse"))
        else:
            held = dict(np.load(run / name))
            np.savez(run / name, rounds=held["rounds"], test_rmse=held["test_acc"])
    task = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
    (run / "summary.json").write_text(json.dumps({**json.loads((run / "summary.json").read_text()), "task": task}))
    (found,) = reaching_of_page(find_methods([read_run(run)]))
    (of_run,) = found["methods"][0]["runs"]
    assert found["sign"] == -1
    assert of_run["round"] == [1, 2, 4]
    assert of_run["mb"] == [1.0, 2.0, 4.0]
    assert [-level * found["unit"] for level in of_run["level"]] == pytest.approx([9.0, 4.0, 2.5], abs=found["unit"])
    assert found["first"] == pytest.approx(2.5, abs=found["step"])
    assert found["first"] >= 2.5  # it is reached
