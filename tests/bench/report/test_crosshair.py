"""The pointer in a chart of lines finds all methods at its place."""

import json

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.writing import write_report

ROUNDS = 9


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run):
    """Write a page of three methods, with a megabyte in each round, and training alone."""
    folder, words = tmp_path_factory.mktemp("page"), []
    for number in range(3):
        level = np.linspace(0.5, 0.8 + number / 20, ROUNDS)[:, None] + np.linspace(-0.1, 0.1, 4)
        run = make_run(folder / str(number), level, config={"selection": {"class_path": f"M{number}"}})
        words.append(f"method {number}={run}")
    alone = {"selection": {"class_path": "Gossip", "init_args": {"k": 0}}}
    words.append(f"Local={make_run(folder / 'alone', np.full((ROUNDS, 4), 0.45), received=0.0, config=alone)}")
    return write_report(words, folder / "page.html")


@pytest.fixture
def seen(page, open_page):
    return open_page(page)


def said(seen):
    """Read the words at the pointer: the place, and the methods there."""
    return [line.split("\t") for line in seen.page.locator("#tip").inner_text().splitlines()]


PLOT = """(id) => {
  const { left, top, width, height } = document.querySelector(`#${id} svg .root .background`).getBoundingClientRect();
  return [left, top, width, height];
}"""


def assert_values(rows, index):
    values = {f"method {n}": np.linspace(0.5, 0.8 + n / 20, ROUNDS)[index] * 100 for n in (2, 1, 0)} | {"Local": 45.0}
    assert [(name, float(text)) for name, text in rows] == [
        (name, pytest.approx(value, abs=0.051)) for name, value in values.items()
    ]


def test_pointer_shows_all_methods_of_the_nearest_round(seen):
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-learning-curves")
    for part in np.linspace(0.01, 0.99, 8):
        seen.page.mouse.move(left + part * width, top + (0.1 + 0.8 * part) * height)
        head, *rows = said(seen)
        index = round(part * (ROUNDS - 1))
        assert head == ["round", str(index + 1)]
        assert_values(rows, index)
        rule = seen.page.locator("#chart-learning-curves .crosshair").bounding_box()
        assert rule["x"] == pytest.approx(left + index / (ROUNDS - 1) * width, abs=1.5)
        assert (rule["y"], rule["height"]) == (pytest.approx(top, abs=1.5), pytest.approx(height, abs=1.5))
    seen.page.mouse.move(left + width / 2, top - 60)
    assert seen.page.locator("#tip").is_hidden()
    assert seen.console == []


@pytest.mark.slow
def test_rank_charts_have_a_crosshair_and_no_invisible_points(seen):
    seen.page.locator("#chart-clients").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-clients")
    seen.page.mouse.move(left + width - 2, top + height / 2)
    assert said(seen) == [
        *(["place", "4"], ["method 2", "80.0"], ["method 1", "75.0"], ["method 0", "70.0"], ["Local", "45.0"])
    ]
    for name in ("learning-curves", "clients", "accuracy-by-bytes"):
        assert seen.page.locator(f"#chart-{name} path[aria-roledescription='point']").count() <= 4  # the lines' ends


@pytest.mark.slow
def test_pointer_at_a_cost_shows_scores_reached_for_it(seen):
    seen.page.locator("#chart-accuracy-by-bytes").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-accuracy-by-bytes")
    for part in (0.1, 0.45, 0.98):
        seen.page.mouse.move(left + part * width, top + height / 2)
        (title, cost), *rows = said(seen)
        assert (title, float(cost)) == ("MB received by a client", pytest.approx(ROUNDS**part, rel=0.02))
        assert_values(rows, int(float(cost)) - 1)
    assert seen.console == []


@pytest.mark.slow
def test_line_at_the_pointer_or_selected_line_is_emphasised(seen):
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    left, top, width, _ = seen.page.evaluate(PLOT, "chart-learning-curves")
    scale = "(value) => window.report.views['chart-learning-curves'].scale('y')(value)"
    place = left + width / 2, top + seen.page.evaluate(scale, 100 * (0.5 + 0.85) / 2)
    near = seen.page.locator("#tip .near")
    seen.page.mouse.move(*place)
    assert near.inner_text().split("\t") == ["method 1", "67.5"]
    colours = seen.page.locator("#tip line").evaluate_all("all => all.map((line) => line.getAttribute('stroke'))")
    ends = "all => Object.fromEntries(all.map((part) => [part.__data__.datum.method, part.getAttribute('stroke')]))"
    lines = seen.page.locator("#chart-learning-curves .mark-line path").evaluate_all(ends)
    assert colours == [lines[name] for name in ("method 2", "method 1", "method 0", "Local")]
    seen.page.mouse.move(place[0], top + 1)
    assert near.count() == 0
    seen.page.evaluate("single.choose('method 0')")
    seen.page.mouse.move(*place)
    assert near.inner_text().split("\t") == ["method 0", "65.0"]


def test_pointer_in_bands_over_clients_shows_their_numbers(seen):
    seen.page.locator("#chart-bands-1").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-bands-1")
    seen.page.mouse.move(left + width / 2, top + height / 2)
    scores = 100 * (np.linspace(0.5, 0.9, ROUNDS)[ROUNDS // 2] + np.linspace(-0.1, 0.1, 4))
    head, *rows = said(seen)
    assert head == ["round", "5"]
    found = {name: float(number) for name, number in rows}
    expected = {f"p{q}": np.percentile(scores, q) for q in (10, 25, 75, 90)} | {"median": np.median(scores)}
    assert found == pytest.approx(expected | {"worst tenth": scores.min()}, abs=0.051)
    assert seen.console == []


def test_what_stands_at_the_pointer_goes_when_the_page_scrolls(seen, until):
    chart = "#chart-learning-curves"
    seen.page.locator(chart).scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, chart[1:])
    seen.page.mouse.move(left + width / 2, top + height / 2)
    assert seen.page.locator("#tip").is_visible()
    seen.page.evaluate("scrollBy({ top: 40, behavior: 'instant' })")
    until(
        seen,
        "document.querySelector('#tip').hidden && document.querySelector('#chart-learning-curves .crosshair').hidden",
    )


def test_the_words_at_the_pointer_stay_when_others_are_drawn(page, open_page, until):
    seen = open_page(page, everything=False)
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    until(seen, "document.querySelector('#chart-learning-curves').getAttribute('role') === 'img' && report.ready")
    left, top, width, height = seen.page.evaluate(PLOT, "chart-learning-curves")
    seen.page.mouse.move(left + width / 2, top + height / 2)
    assert said(seen)[0] == ["round", "5"]
    assert not seen.page.locator("#chart-accuracy-by-bytes svg").count()
    seen.page.evaluate("window.report.whole().then(() => true)")
    assert seen.page.locator("#chart-accuracy-by-bytes svg").count()
    assert said(seen)[0] == ["round", "5"]
    assert seen.page.locator("#tip").is_visible()
    assert seen.console == []


def test_the_pointer_finds_the_lines_of_a_client(seen, until):
    seen.page.evaluate("location.hash = 'who?run=method 1&round=9&client=2'")
    until(seen, "Boolean(document.querySelector('#chart-one-client svg'))")
    seen.page.locator("#chart-one-client").scroll_into_view_if_needed()
    until(seen, "document.querySelector('#chart-one-client').getAttribute('role') === 'img'")
    left, top, width, height = seen.page.evaluate(PLOT, "chart-one-client")
    seen.page.mouse.move(left + width - 2, top + height / 2)
    assert [row[0] for row in said(seen)] == ["round", "client 2", "mean of all clients", "Local"]
    colours = seen.page.locator("#tip line").evaluate_all("all => all.map((line) => line.getAttribute('stroke'))")
    drawn = "all => all.map((part) => part.getAttribute('stroke'))"
    assert {colours[0], colours[2]} <= set(seen.page.locator("#chart-one-client .mark-line path").evaluate_all(drawn))
    assert seen.console == []


@pytest.mark.slow
def test_numbers_without_percent_match_digits_of_their_deviation(tmp_path, make_run, open_page):
    words = []
    for name, level in (("Small", 0.5), ("Large", 5.0)):
        for seed in (0, 1):
            errors = np.full((3, 4), level + (2 * seed - 1) * 0.0212132)  # a deviation of 0.03 over the two seeds
            run = make_run(tmp_path / f"{name}-{seed}", errors, seed=seed, config={"selection": {"class_path": name}})
            table = (run / "metrics.csv").read_text().replace("test_acc", "test_rmse")
            (run / "metrics.csv").write_text(table)
            np.savez(run / "clients.npz", rounds=np.arange(3), test_rmse=errors)
            task = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
            summary = {**json.loads((run / "summary.json").read_text()), "task": task}
            (run / "summary.json").write_text(json.dumps(summary))
            words.append(run)
    seen = open_page(write_report(words))
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-learning-curves")
    seen.page.mouse.move(left + width / 2, top + height / 2)
    assert said(seen) == [["round", "2"], ["Large", "5.00 ± 0.03"], ["Small", "0.500 ± 0.030"]]
    assert seen.console == []
