"""The front of score and cost: its intervals, its switch, and what the headline says of the same score for less."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.sentences.verdict import sentences
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.utils.errors import UserError

CLIENTS = 4


@pytest.fixture
def runs(tmp_path, make_run):
    """Write runs of named methods: mean accuracy, and bytes, messages and seconds a round, for each seed."""

    def make(**methods):
        folders = {}
        for name, seeds in methods.items():
            for seed, (accuracy, received, models, seconds) in enumerate(seeds):
                folder = make_run(
                    tmp_path / f"{name}{seed}",
                    accuracy + np.linspace(-0.02, 0.02, CLIENTS) * np.ones((3, 1)),
                    seed=seed,
                    received=received,
                    test_images=np.random.default_rng(seed).permutation(1000 * CLIENTS),
                    config={"selection": {"class_path": name}},
                )
                head, *lines = (folder / "metrics.csv").read_text().splitlines()
                head += ",models_received,proxies_received,simulated_seconds"
                lines = [f"{line},{models},1,{seconds * (r + 1)}" for r, line in enumerate(lines)]
                (folder / "metrics.csv").write_text("\n".join([head, *lines]) + "\n")
                folders[name, seed] = folder
        return folders

    return make


OURS = [(0.90, 10e6, 5, 3.0), (0.92, 12e6, 6, 4.0), (0.91, 11e6, 5, 5.0)]
LEAN = [(0.897, 4e6, 2, 6.0), (0.923, 5e6, 2, 7.0), (0.9085, 4.2e6, 2, 9.0)]
POOR = [(0.80, 11e6, 7, 9.0), (0.81, 13e6, 7, 9.5), (0.82, 12e6, 7, 10.0)]


def rows_of(chart):
    return {row["method"]: row for part in chart.to_dict()["datasets"].values() for row in part if "low" in row}


def test_points_have_intervals_and_the_front_omits_dominated_methods(runs):
    found = [read_run(folder) for folder in runs(Ours=OURS, Lean=LEAN, Poor=POOR).values()]
    for cost, of in (
        ("bytes", lambda one: 3e-6 * one[1]),
        ("messages", lambda one: 3 * (one[2] + 1)),
        ("time", lambda one: 3 * one[3]),
    ):
        chart = report.accuracy_front(found, cost)
        rows = rows_of(chart)
        for name, seeds in (("Ours", OURS), ("Lean", LEAN), ("Poor", POOR)):
            for field, low, high, values in (
                ("accuracy", "low", "high", [100 * one[0] for one in seeds]),
                ("cost", "cost low", "cost high", [of(one) for one in seeds]),
            ):
                sure = np.ptp(values) > 0
                ends = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values)) if sure else [np.mean(values)] * 2
                expected = [np.mean(values), max(0, ends[0]) if field == "cost" else ends[0], ends[1]]
                assert [rows[name][key] for key in (field, low, high)] == pytest.approx(expected, rel=1e-4)
        line = chart.to_dict()["layer"][0]
        names = {row["method"] for row in chart.to_dict()["datasets"][line["data"]["name"]]}
        assert names == ({"Ours"} if cost == "time" else {"Ours", "Lean"})
    with pytest.raises(UserError, match="there is no cost 'money'; costs are: bytes, messages, time"):
        report.accuracy_front(found, "money")


def said(folders):
    return " ".join(sentences(find_methods([read_run(folder) for folder in folders.values()])))


def test_same_score_for_less_is_said_if_intervals_allow(runs):
    words = said(runs(Ours=OURS, Lean=LEAN))
    gaps = [lean[0] - ours[0] for lean, ours in zip(LEAN, OURS, strict=True)]
    low, high = stats.t.interval(0.95, 2, np.mean(gaps), stats.sem(gaps))
    assert -0.01 <= low < 0 < high <= 0.01
    sure = "3 common seeds, simultaneous 95 % interval −0.8 to +0.7"
    assert f"no clear difference to Lean ({sure}, 0.4 of the bytes)" in words
    assert "The same accuracy, within 1 point, is reached by Lean with 0.4 of the bytes." in words


@pytest.mark.parametrize(
    ("lean", "share"),
    [
        (LEAN[:2], False),  # two seeds
        ([(0.88, *LEAN[0][1:]), (0.93, *LEAN[1][1:]), LEAN[2]], True),  # too wide an interval
        ([(0.895, *LEAN[0][1:]), (0.9152, *LEAN[1][1:]), (0.9051, *LEAN[2][1:])], False),  # clearly lower
        ([(a, b, 1, 1.0) for (a, *_), b in zip(LEAN, (4e6, 14e6, 9e6), strict=True)], False),  # not surely fewer bytes
    ],
)
def test_same_score_for_less_is_not_said_otherwise(runs, lean, share):
    words = said(runs(Ours=OURS, Lean=lean))
    assert "The same" not in words
    assert ("of the bytes" in words) == share


@pytest.mark.slow
def test_the_switch_shows_the_front_of_another_cost(runs, open_page):
    folders = runs(Ours=OURS, Lean=LEAN, Poor=POOR)
    seen = open_page(write_report(list(folders.values())), everything=False)
    fronts = seen.page.locator("#cost figure:has([id^=chart-front-by])")
    assert fronts.count() == 3
    switch = seen.page.locator("#cost .front select")
    assert switch.locator("option").all_inner_texts() == ["bytes", "messages", "simulated time"]
    for cost, axis in (("messages", "messages received by a client"), ("time", "simulated seconds")):
        switch.select_option(cost)
        shown = [one.is_visible() for one in fronts.all()]
        assert shown == [cost == name for name in ("bytes", "messages", "time")]
        chart = seen.page.locator(f"#chart-front-by-{cost} svg")
        chart.wait_for()
        assert axis in chart.locator(".role-axis-title").all_text_contents()
    assert seen.console == []


@pytest.mark.parametrize(
    ("accuracies", "ends"),
    [((0.30, 0.90), (0.0, 100.0)), ((0.90, 0.91), (84.147, 96.853)), ((0.5, 0.99), (0.0, 100.0))],
)
def test_intervals_end_at_the_limits_of_the_score(runs, accuracies, ends):
    """Student's t with one degree of freedom: the mean and 12.7062 times half the difference of two."""
    found = runs(Ours=[(accuracy, 10e6, 5, 3.0) for accuracy in accuracies])
    chart = report.accuracy_front([read_run(folder) for folder in found.values()])
    row = rows_of(chart)["Ours"]
    mean, half = 50 * sum(accuracies), 50 * 12.7062047 * abs(accuracies[1] - accuracies[0])
    assert (row["low"], row["high"]) == pytest.approx((mean - half, mean + half), abs=0.01)  # the numbers as they are
    assert (row["from"], row["to"]) == pytest.approx(ends, abs=0.01)
    arrows = [row for part in chart.to_dict()["datasets"].values() for row in part if "angle" in row]
    assert sorted(arrow["at"] for arrow in arrows) == ([0.0, 100.0] if half > 20 else [])
    for layer in chart.to_dict()["layer"]:
        domain = layer["encoding"].get("y", {}).get("scale", {}).get("domain", [0, 100])
        assert 0 <= domain[0] < domain[1] <= 100


def test_dot_of_gains_is_the_mean_of_its_clients():
    from dfl_lightning.bench.report.charts.clients import _piles

    rows = [{"method": "A", "seed": 0, "client": c, "gain": gain} for c, gain in enumerate((-22.2, 3.4, 2.6))]
    assert _piles(rows, 1.0) == [
        {"method": "A", "gain": -22.2, "number": 1, "who": "0:0", "clients": "client 0, seed 0"},
        {"method": "A", "gain": 3.0, "number": 2, "who": "0:1 0:2", "clients": "client 1, seed 0; client 2, seed 0"},
    ]


def test_long_names_beside_the_points_are_not_cut_off(runs, tmp_path, open_page):
    dear = [(0.90, 23e6, 5, 3.0), (0.92, 19e6, 6, 4.0), (0.91, 21e6, 5, 5.0)]  # the interval ends beyond the mean
    others = {f"M{k}": [(a - k / 100, b / 4, c, d) for a, b, c, d in POOR] for k in range(4)}
    found = runs(Ours=dear, **others)
    named = [f"A method of a long name, {name}={folder}" for (name, _), folder in found.items()]
    seen = open_page(write_report(named, tmp_path / "page.html"))
    over = """chart => {
        const edge = chart.getBoundingClientRect().right;
        return [...chart.querySelectorAll("svg text")].map((words) => words.getBoundingClientRect().right - edge);
    }"""
    beyond = seen.page.locator("#chart-front-by-bytes").evaluate(over)
    assert len(beyond) > 10
    assert max(beyond) <= 0.5
