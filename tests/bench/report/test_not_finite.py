"""Scores that are infinite or NaN, as a page, its charts and the table of a study show them."""

import json
import math
from html import unescape

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report import charts
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.runs.summary import final_table
from dfl_lightning.utils.score import Score

TASK = {"name": "NextToken", "score": "perplexity", "higher_is_better": False, "percent": False}


@pytest.fixture
def make(tmp_path, make_run):
    """Make a run whose clients have these perplexities, [rounds, clients]."""

    def run(values, seed=0, policy="Ours"):
        values = np.asarray(values, dtype=np.float64)
        folder = make_run(
            tmp_path / policy / str(seed), values, seed=seed, config={"selection": {"class_path": policy}}
        )
        rows = (folder / "metrics.csv").read_text().replace("test_acc", "test_loss,test_perplexity").splitlines()
        lines = [rows[0] + ",consensus_distance_relative"]
        for row, of_clients in zip(rows[1:], values, strict=True):
            number, train, _, *others = row.split(",")
            loss = 3.0 if np.isfinite(of_clients).all() else math.inf
            lines.append(",".join([number, train, repr(loss), repr(float(of_clients.mean())), *others, "inf"]))
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        losses = np.where(np.isfinite(values), 3.0, math.inf)
        np.savez(folder / "clients.npz", rounds=np.arange(len(values)), test_perplexity=values, test_loss=losses)
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {"task": TASK, "test_score": {"last": None, "not_finite": {"0": 1}}}
        (folder / "summary.json").write_text(json.dumps(summary))
        return read_run(folder)

    return run


def values(chart, field):
    """Return the numbers of a field in the rows of a chart, and those of its ends."""
    spec = chart.to_dict(validate=False)
    rows = [row for held in spec["datasets"].values() for row in held]
    return [row[field] for row in rows if field in row], [row for row in rows if "label" in row]


def test_mean_over_seeds_includes_values_that_are_not_finite(make):
    runs = [make([[9.0, 11.0], [8.0, 8.0]]), make([[7.0, 9.0], [math.inf, 6.0]], seed=1)]
    means, ends = values(charts.learning_curves(runs), "mean")
    assert means[:2] == [9.0, None]  # (10 + 8) / 2; the mean of 8 and infinity
    assert {row["label"] for row in ends} == {"Ours  not finite"}
    assert {row["end_y"] for row in ends} == {None}


@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_a_page_shows_a_number_that_is_not_finite(make, worst):
    """A warning of numpy would fail this test."""
    broken = make([[9.0, 11.0, 5.0], [math.inf, worst, 5.0]], policy="Broken")
    whole = make([[9.0, 11.0, 5.0], [4.0, 5.0, 6.0]])
    methods = find_methods([broken, whole])
    text = page(methods)
    assert "<td data-is='score'>not finite</td>" in text
    assert "<td data-is='score'><b>5.00</b></td>" in text
    assert "In Broken a client's loss or perplexity on test data is not finite: there is no mean." in unescape(text)
    drawn = {figure.name: figure for figure in figures(methods)}
    assert {"learning-curves", "clients", "perplexity-by-bytes", "bands-1", "consensus"} <= drawn.keys()
    assert "Broken  not finite" in drawn["learning-curves"].spoken
    for figure in drawn.values():
        json.dumps(figure.spec, allow_nan=False)


def test_page_with_only_infinite_scores_is_drawn(make, open_page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(find_methods([make(np.full((3, 4), math.inf))])), encoding="utf-8")
    assert open_page(file).console == []


@pytest.mark.parametrize(("values", "broken"), [([[9.0, 8.0]], False), ([[math.inf, 8.0]], True)])
def test_study_distinguishes_not_finite_from_missing(make, values, broken):
    score = Score("NextToken", "perplexity", False, False)
    run = make(values)
    assert Measure("last", score=score).is_not_finite(run.summary, run.path)  # null, and clients that are the reason
    assert Measure("test_perplexity", "last").is_not_finite(run.summary, run.path) == broken
    assert Measure("consensus_distance_relative", "last").is_not_finite(run.summary, run.path)
    for nothing in (Measure("best_val", score=score), Measure("simulated_seconds", "last")):
        assert nothing.of(run.summary, run.path) is None
        assert not nothing.is_not_finite(run.summary, run.path)


def test_the_summary_names_clients_with_an_infinite_score():
    from dfl_lightning.runs.summary import _of_score

    clients = {
        "rounds": np.array([0, 1]),
        "test_loss": np.array([[3.0, 800.0], [3.0, 3.0]]),  # e^800 is above the largest float64
        "test_perplexity": np.array([[20.0, math.inf], [20.0, 20.0]]),
    }
    metrics = {"global_test_perplexity": np.array([math.nan] * 2)}
    found = _of_score(Score("NextToken", "perplexity", False, False), metrics, clients)
    assert found["not_finite"] == {"1": 1}
    assert (found["last"], found["best_round"], found["mean"]) == (20.0, 20.0, 20.0)


def test_the_final_table_says_that_a_score_is_not_finite():
    summary = {
        "task": TASK,
        "test_score": {"last": None, "mean": None, "not_finite": {"2": 3}},
        "received_per_client": {"models": 2, "proxies": 0, "bytes": 10},
        **{"neighbours_mean": None, "diverged": {}, "rounds": 3, "found": {}},
    }
    first, second = final_table(summary)
    assert first.startswith("test perplexity unknown: not every loss and perplexity of the last evaluation is finite")
    assert second == "the loss or perplexity on test data was not finite: client 2 in 3 evaluations"
