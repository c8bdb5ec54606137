"""Charts at a glance: one order of methods, scales that fit the values, and axes of whole numbers."""

import re
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.charts.axes import whole_ticks
from dfl_lightning.bench.report.look.theme import LIGHT
from dfl_lightning.bench.report.writing import write_report

ROUNDS, ORDER, LEVELS = 3, ["second", "third", "best"], [0.8, 0.7, 0.9]
OWN, STRONG, WEAK = 0.7, 0.2, 0.1


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run):
    """Write a page of three methods that are not given in their order, with two seeds each, and training alone."""
    folder, words = tmp_path_factory.mktemp("page"), []
    links = [
        (r, i, (i + step) % 4, weight, step > 0, False)
        for r in range(ROUNDS)
        for i in range(4)
        for step, weight in enumerate((OWN, STRONG, WEAK))
    ]
    for name, level in [*zip(ORDER, LEVELS, strict=True), ("Local", 0.5)]:
        for seed in (0, 1):
            accuracy = np.full((ROUNDS, 4), level) + np.array([-0.08, -0.04, 0.0, 0.04]) * (1 + seed)
            alone = {"received": 0.0, "config": {"selection": {"class_path": "Gossip", "init_args": {"k": 0}}}}
            about = alone if name == "Local" else {"config": {"selection": {"class_path": name}}}
            run = make_run(folder / f"{name} {seed}", accuracy, links if name != "Local" else (), seed=seed, **about)
            words.append(f"{name}={run}")
    return write_report(words, folder / "page.html")


AXIS = (
    "(name) => [...document.querySelectorAll(`#chart-${name} .role-axis-label text`)].map((text) => text.textContent)"
)


@pytest.mark.slow
def test_methods_have_one_order_and_slider_starts_last(page, open_page):
    seen = open_page(page)
    wanted = ["best", "second", "third", "Local"]
    table = seen.page.locator("#verdict tr[data-method]").evaluate_all("rows => rows.map((row) => row.dataset.method)")
    assert table == wanted
    options = seen.page.locator("#run > option").all_inner_texts()
    assert options == [f"{name}, seed {seed}" for name in wanted[:3] for seed in (0, 1)]
    for section in ("learning", "who"):
        figures = seen.page.locator(f"#{section} figure[data-method]").evaluate_all(
            "all => all.map((one) => one.dataset.method)"
        )
        assert figures == wanted[: len(figures)]
        assert len(figures) >= 3
    assert [text for text in seen.page.evaluate(AXIS, "gain-over-local") if text in wanted] == wanted[:3]
    assert seen.page.evaluate("window.report.now()")["round"] == ROUNDS
    assert seen.page.locator("#run").evaluate("(select) => select.selectedOptions[0].text") == "best, seed 0"
    assert [seen.page.locator(name).inner_text() for name in ("#first", "#last")] == ["1", str(ROUNDS)]


def test_short_axes_have_each_whole_number_once(page, open_page):
    seen = open_page(page)
    for name in ("learning-curves", "bands-1"):
        whole = [text for text in seen.page.evaluate(AXIS, name) if int(text) <= ROUNDS]
        assert [number for number in whole if number != "0"] == ["1", "2", "3"]
    assert whole_ticks(1, 400, 8) == [50 * number for number in range(1, 9)]
    assert whole_ticks(1, 1, 8) == [1]


def test_clients_are_steps_with_a_band_over_seeds(page, open_page):
    seen = open_page(page)
    lines = seen.page.locator("#chart-clients .mark-line path").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('d'))"
    )
    assert len(lines) == 4
    for line in lines:
        assert "C" not in line
        points = [tuple(map(float, pair)) for pair in re.findall(r"([-\d.]+),([-\d.]+)", line)]
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points))
    assert seen.page.locator("#chart-clients .mark-area path").count() == 4
    seen.page.click("details[data-of=clients] summary")
    seen.page.locator("details[data-of=clients] tbody tr").first.wait_for()
    cells = seen.page.locator("details[data-of=clients] tbody tr").first.locator("td").all_inner_texts()
    sd = np.std([4, 8], ddof=1)
    assert cells[:2] == ["best", "1"]
    assert [float(cell) for cell in cells[2:6]] == pytest.approx([96, sd, 96 - sd, 96 + sd], abs=1e-3)


def test_weights_use_the_whole_colour_ramp_with_a_scale(page, open_page):
    seen = open_page(page)
    assert seen.page.locator("#ramp small").all_inner_texts() == ["0", "0.1", "0.2"]
    assert seen.page.locator("#ramp span").inner_text() == "weight in the new model; the receiver's own may be more"
    colours = """() => {
      const { canvas } = window.report.views.heat, { width } = canvas, unit = (width - 27) / 4;
      const pixels = canvas.getContext("2d").getImageData(0, 0, width, width).data;
      return [0, 1, 2].map((column) => {
        const at = 4 * (Math.round(22 + 0.25 * unit) * width + Math.round(22 + (column + 0.25) * unit));
        return [...pixels.slice(at, at + 3)];
      });
    }"""
    own, strong, weak = seen.page.evaluate(colours)
    assert own == strong == [int(LIGHT["ramp"][-1][place : place + 2], 16) for place in (1, 3, 5)]
    assert weak == [int(LIGHT["ramp"][2][place : place + 2], 16) for place in (1, 3, 5)]
    spec = report.link_heatmap(read_run(page.parent / "best 0")).to_dict()
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == pytest.approx([0, STRONG])
    assert seen.console == []


def test_cut_axis_is_labelled(tmp_path, make_run):
    level = np.linspace(0.8, 0.9, 50)[:, None] + np.zeros((50, 4))
    level[0] = 0.1
    run = read_run(make_run(tmp_path / "run", level, config={"selection": {"class_path": "M"}}))
    title = "test accuracy, %, cut below 75"
    for chart in (report.learning_curves([run]), report.accuracy_by_bytes([run])):
        titles = [
            layer.get("encoding", {}).get("y", {}).get("axis", {}).get("title") for layer in chart.to_dict()["layer"]
        ]
        assert title in titles
    whole = read_run(make_run(tmp_path / "whole", level[1:], config={"selection": {"class_path": "M"}}))
    assert "cut" not in str(report.learning_curves([whole]).to_dict())
