"""Runs that cannot be compared are drawn without extending an axis; computing options do not make methods."""

import re

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

import vl_convert

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.pictures import rows_of
from dfl_lightning.bench.report.page.sections import figures

CHARTS = [
    report.learning_curves,
    report.sorted_clients,
    report.accuracy_by_bytes,
    lambda runs: report.found_over_rounds(runs, "test_acc", "x", share=False),
]


def domain(chart):
    """Return the domain of the vertical axis."""
    vertical = [layer["encoding"].get("y", {}) for layer in chart.to_dict()["layer"] if "encoding" in layer]
    first, *others = [channel["scale"]["domain"] for channel in vertical if "scale" in channel]
    assert all(one == first for one in others)
    return first


@pytest.fixture
def runs(tmp_path, make_run):
    """Write a method, training alone, a method that diverges, and one that stops early; two unequal clients each."""
    rise = np.linspace(0.8, 0.9, 6)[:, None] + [0.0, 0.02]
    fall = np.where(np.arange(6)[:, None] < 2, rise, 0.05)
    everyone = {"diverged": [(2, 0), (2, 1)]}
    found = {}
    for name, level, more in (
        ("Ours", rise, {}),
        ("Alone", rise - 0.03, {"received": 0.0}),
        ("Broken", fall, everyone),
        ("Short", rise[:1] - 0.4, {"status": "stopped"}),
    ):
        config = {"selection": {"class_path": name}, "trainer": {"max_rounds": 6}}
        for seed in (0, 1):
            folder = make_run(tmp_path / name / str(seed), level, seed=seed, config=config, **more)
            found.setdefault(name, []).append(read_run(folder))
    return found


@pytest.mark.parametrize("chart", CHARTS, ids=["curves", "clients", "bytes", "reasons"])
def test_axes_are_those_of_the_runs_that_are_compared(runs, chart):
    everything = [run for of_method in runs.values() for run in of_method]
    whole = chart(everything)
    assert domain(whole) == domain(chart([*runs["Ours"], *runs["Alone"]]))
    assert {row["method"] for row in rows_of(whole.to_dict())} >= {"Ours", "Broken", "Short"}
    svg = vl_convert.vegalite_to_svg(whole.to_dict())
    assert "Broken: diverged" in svg
    assert "Short: 1 round only" in svg
    assert svg.count('opacity="0.4"') >= 2


def test_incomparable_runs_are_drawn_if_there_are_no_others(runs):
    assert [m.aside for m in for_charts(find_methods(runs["Short"]))] == [""]
    assert [m.aside for m in for_charts(find_methods([*runs["Short"], *runs["Broken"]]))] == ["", "diverged"]
    lowest, highest = domain(report.learning_curves(runs["Broken"]))
    assert lowest < 80 < highest


def test_curves_average_the_compared_seeds(tmp_path, runs, make_run):
    config = {"selection": {"class_path": "Ours"}, "trainer": {"max_rounds": 6}}
    folder = make_run(tmp_path / "third", np.full((6, 2), 0.1), seed=2, config=config, diverged=[(0, 0)])
    drawn, before = (
        rows_of(report.learning_curves(found).to_dict()) for found in ([*runs["Ours"], read_run(folder)], runs["Ours"])
    )
    assert drawn == before


def test_page_names_failed_methods_first_and_omits_their_gains(runs):
    methods = find_methods([run for of_method in runs.values() for run in of_method])
    text = page(methods)
    aside = "Not compared: Broken: all clients diverged; Short: stopped after 1 of 6 rounds."
    assert f"<p class='lead aside'>{aside}</p>\n<p class='lead'><strong>Ours ends at" in text
    assert re.findall("<tr class='aside' data-method=\"(.*?)\">", text) == ["Broken", "Short"]  # no bold numbers
    (gains,) = (figure for figure in figures(methods) if figure.name == "gain-over-local")
    assert "Without Broken (diverged) and Short (1 round only)." in gains.note
    assert gains.spec["layer"][1]["encoding"]["y"]["scale"]["domain"] == ["Ours"]


def test_data_are_described_by_a_run_that_knows_them(tmp_path, make_run):
    """A run under way has no summary yet."""
    config = {"selection": {"class_path": "Ours"}}
    made = [make_run(tmp_path / str(s), [[0.5]], seed=s, config=config, status=[None, "finished"][s]) for s in (0, 1)]
    assert "<h1>Drawn, 4 images a client, 1 client</h1>" in page(find_methods([read_run(folder) for folder in made]))


@pytest.mark.parametrize("option", ["accelerator", "devices", "cohorts", "cuda_graphs", "deterministic", "benchmark"])
def test_devices_and_engines_are_not_settings(tmp_path, make_run, option):
    runs = []
    for seed, value in enumerate(("one", "two")):
        config = {"selection": {"class_path": "Ours"}, "trainer": {option: value}}
        runs.append(read_run(make_run(tmp_path / value, [[0.5]], seed=seed, config=config)))
    assert [(m.name, m.seeds) for m in find_methods(runs)] == [("Ours", [0, 1])]
