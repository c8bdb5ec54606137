"""The score against numeric settings: lines, intervals and heat maps, against numbers by hand."""

import re

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("altair", reason="the extra `report` is not installed")

import vl_convert

from dfl_lightning import read_run, report
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.pictures import rows_of
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.bench.report.settings.sweeps import grids, sweeps
from dfl_lightning.utils.errors import UserError

SEEDS = (0, 1, 2)


def score(k, rate, seed):
    return 0.5 + k / 50 + rate + seed / 100


@pytest.fixture(scope="module")
def methods(tmp_path_factory, make_run):
    """Write a grid of k and rate of one method, a sweep of k of another one, and a method that has no k."""
    folder, runs = tmp_path_factory.mktemp("runs"), []
    for seed in SEEDS:
        for k in (1, 3, 10):
            for rate in (0.01, 0.1):
                config = {"selection": {"class_path": "A", "init_args": {"k": k}}, "model": {"optimizer": {"lr": rate}}}
                level = np.full((2, 4), score(k, rate, seed))
                runs.append(make_run(folder / f"A {k} {rate} {seed}", level, seed=seed, config=config))
            config = {"selection": {"class_path": "B", "init_args": {"k": k}}, "model": {"optimizer": {"lr": 0.1}}}
            runs.append(make_run(folder / f"B {k} {seed}", np.full((2, 4), 0.3 + k / 100), seed=seed, config=config))
    config = {"selection": {"class_path": "C"}, "model": {"optimizer": {"lr": 0.1}}}
    runs.append(make_run(folder / "C", np.full((2, 4), 0.4), config=config))
    return find_methods([read_run(run) for run in runs])


def test_lines_join_methods_that_differ_in_one_setting_only(methods):
    found = sweeps(methods)
    assert set(found) == {"selection.k", "model.optimizer.lr"}
    lines = {line.name: list(line.methods) for line in found["selection.k"]}
    assert lines == {"A (lr = 0.01)": [1, 3, 10], "A (lr = 0.1)": [1, 3, 10], "B": [1, 3, 10]}
    assert {line.name: list(line.methods) for line in found["model.optimizer.lr"]} == {
        f"A (k = {k})": [0.01, 0.1] for k in (1, 3, 10)
    }
    for line in found["selection.k"]:
        for value, method in line.methods.items():
            assert method.runs[0].config["selection"]["init_args"]["k"] == value
    assert sweeps(methods[:1]) == {}


def test_points_have_means_intervals_and_each_seed(methods):
    rows = [
        row
        for row in rows_of(report.score_by_setting(methods, "selection.k").to_dict())
        if row["line"] == "A (lr = 0.1)"
    ]
    assert [row["value"] for row in rows] == [1, 3, 10]
    for row in rows:
        values = [100 * score(row["value"], 0.1, seed) for seed in SEEDS]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert [row["accuracy"], row["low"], row["high"]] == pytest.approx([np.mean(values), low, high], abs=1e-3)
        assert [row[f"seed {seed}"] for seed in SEEDS] == pytest.approx(values)


def test_a_single_line_and_training_alone_have_their_names(tmp_path, make_run):
    runs = []
    for k in (0, 2, 4):
        config = {"selection": {"class_path": "Gossip", "init_args": {"k": k}}}
        runs.append(make_run(tmp_path / str(k), np.full((2, 4), 0.5), received=1e6 * k, config=config))
    svg = vl_convert.vegalite_to_svg(report.score_by_setting([read_run(run) for run in runs]).to_dict())
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"Gossip", "Local"} <= set(words)


def test_two_settings_have_a_heat_map(methods):
    ((settings, (grid,)),) = grids(methods).items()
    assert (set(settings), grid.name) == ({"selection.k", "model.optimizer.lr"}, "A")
    chart = report.score_by_two_settings(methods).to_dict()
    rows = rows_of(chart)
    assert len(rows) == 6
    for row in rows:
        expected = np.mean([100 * score(row["selection.k"], row["model.optimizer.lr"], seed) for seed in SEEDS])
        assert row["accuracy"] == pytest.approx(expected, abs=1e-3)
        assert row["text"] == f"{expected:.1f}"


def test_page_has_a_chart_for_each_setting_and_pair(methods):
    names = [figure.name for figure in figures(methods) if figure.section == "sweeps"]
    assert names == ["sweep-model-optimizer-lr", "sweep-selection-k", "sweep-of-two-1"]


def test_without_a_sweep_a_sentence_names_the_setting(methods):
    with pytest.raises(UserError, match=r"swept are: .*selection\.k"):
        report.score_by_setting(methods, "model.momentum")
    with pytest.raises(UserError, match="no numeric setting"):
        report.score_by_setting(methods[:1])
    with pytest.raises(UserError, match="were swept together"):
        report.score_by_two_settings(methods[:1])


def test_lines_of_one_name_are_told_apart_by_words(tmp_path, make_run):
    runs = []
    for similarity in ("cosine", "distance"):
        for k in (1, 3):
            config = {"selection": {"class_path": "A", "init_args": {"k": k, "similarity": similarity}}}
            runs.append(make_run(tmp_path / f"{similarity} {k}", np.full((2, 4), 0.5), config=config))
    (lines,) = sweeps(find_methods([read_run(run) for run in runs])).values()
    assert [line.name for line in lines] == ["A (similarity = cosine)", "A (similarity = distance)"]
