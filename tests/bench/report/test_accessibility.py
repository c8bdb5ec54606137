"""The page without scripts, on a phone and for a screen reader, and rounds that count from 1."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.page.pictures import rows_of
from dfl_lightning.bench.report.writing import write_report

ROUNDS = 4


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run, make_links):
    folder, rng = tmp_path_factory.mktemp("page"), np.random.default_rng(0)
    level = np.linspace(0.5, 0.8, ROUNDS)[:, None] + np.linspace(-0.05, 0.05, 20)
    ours = make_run(
        folder / "ours",
        level,
        make_links(rng, ROUNDS, 20, 2),
        config={"selection": {"class_path": "Ours"}},
        dropouts=[(1, 3)],
    )
    alone = make_run(folder / "alone", level - 0.1, received=0.0, config={"selection": {"class_path": "Alone"}})
    return write_report([ours, alone])


def test_without_javascript_the_page_says_so_and_shows_tables(page, chromium):
    context = chromium.new_context(java_script_enabled=False, viewport={"width": 1200, "height": 900})
    seen = context.new_page()
    seen.goto(page.resolve().as_uri())
    note = seen.locator("header .aside")
    assert note.inner_text() == "The charts need JavaScript, which is off. The tables do not."
    assert note.bounding_box()["y"] < seen.locator("h1").bounding_box()["y"]
    assert [seen.locator(f"#{name}").is_visible() for name in ("verdict", "how", "learning", "who")] == [True, True] + [
        False
    ] * 2
    assert seen.locator("figure:visible, .chart:visible").count() == 0
    context.close()


@pytest.mark.parametrize("width", [390, pytest.param(320, marks=pytest.mark.slow)])
def test_fixed_column_hides_scrolled_cells_and_nothing_overflows(page, open_page, width):
    seen = open_page(page, width)
    table = seen.page.locator("#verdict .scroll").first
    table.evaluate("(box) => { box.scrollLeft = 120; }")
    box, name = table.bounding_box(), seen.page.locator("#verdict tbody th").first.bounding_box()
    assert name["x"] <= box["x"]
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    button = seen.page.locator("#play").bounding_box()
    assert button["x"] + button["width"] <= width - 12


def test_charts_have_descriptions_and_folds_have_unique_names(page, open_page):
    seen = open_page(page)
    said = {part.get_attribute("id"): part.get_attribute("aria-label") for part in seen.page.locator(".chart").all()}
    assert len(set(said.values())) == len(said)
    assert "At the end: Ours 80, Local 70." in said["chart-learning-curves"]
    assert said["chart-gain-over-local"].endswith("At the end: Ours +10.0, 0 of 20 lose.")
    assert {part.get_attribute("role") for part in seen.page.locator(".chart:not(.linked)").all()} == {"img"}
    assert {part.get_attribute("role") for part in seen.page.locator(".linked").all()} == {"application"}
    folds = [part.get_attribute("aria-label") for part in seen.page.locator(".numbers summary").all()]
    assert len(set(folds)) == len(folds) > 4
    assert "Numbers: Test accuracy over rounds" in folds
    files = [
        part.bounding_box() for part in seen.page.locator("#learning figure").first.locator(".numbers, .save").all()
    ]
    assert len({round(box["y"] + box["height"] / 2) // 4 for box in files}) == 1  # on one line


def test_rounds_count_from_one_in_charts_and_on_the_slider(page, open_page):
    run = read_run(page.parent)
    expected = list(range(1, ROUNDS + 1))
    for chart in (report.learning_curves([run]), report.client_bands(run), report.accuracy_by_bytes([run])):
        assert [row["round"] for row in rows_of(chart.to_dict())] == expected
    found = report.found_over_rounds([run], "neighbours", "neighbours", share=False)
    assert [row["round"] for row in rows_of(found.to_dict())] == expected
    assert [row["round"] for row in rows_of(report.dropouts(run).to_dict())] == [2]
    seen = open_page(page)
    seen.page.evaluate(f"window.report.move({ROUNDS - 1})")
    assert seen.page.locator("#state b").first.inner_text() == f"Round {ROUNDS}"
    assert f"Round {ROUNDS} of {ROUNDS}" in seen.page.locator("#state").inner_text()
    marks = seen.page.locator("#chart-learning-curves svg .role-axis-label text").all_inner_texts()
    assert "0" not in marks
