"""The pointer in a chart of lines finds all methods at its place."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.report.writing import write_report

ROUNDS = 9


@pytest.fixture
def seen(tmp_path, make_run, open_page):
    words = []
    for number in range(3):
        level = np.linspace(0.5, 0.8 + number / 20, ROUNDS)[:, None] + np.linspace(-0.1, 0.1, 4)
        run = make_run(tmp_path / str(number), level, config={"selection": {"class_path": f"M{number}"}})
        words.append(f"method {number}={run}")
    return open_page(write_report(words, tmp_path / "page.html"))


PLOT = """(id) => {
  const { left, top, width, height } = document.querySelector(`#${id} svg .root .background`).getBoundingClientRect();
  return [left, top, width, height];
}"""


def test_every_place_in_the_plot_says_all_methods_of_the_nearest_round(seen):
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-learning-curves")
    for part in np.linspace(0.01, 0.99, 8):
        seen.page.mouse.move(left + part * width, top + (0.1 + 0.8 * part) * height)
        head, *rows = [line.split("\t") for line in seen.page.locator("#tip").inner_text().splitlines()]
        index = round(part * (ROUNDS - 1))
        assert head == ["round", str(index + 1)]
        values = [np.linspace(0.5, 0.8 + number / 20, ROUNDS)[index] * 100 for number in range(3)]
        assert [(name, float(text)) for name, text in rows] == [
            (f"method {number}", pytest.approx(values[number], abs=0.051))
            for number in (2, 1, 0)  # as in the table
        ]
        rule = seen.page.locator("#chart-learning-curves .crosshair").bounding_box()
        assert rule["x"] == pytest.approx(left + index / (ROUNDS - 1) * width, abs=1.5)
        assert (rule["y"], rule["height"]) == (pytest.approx(top, abs=1.5), pytest.approx(height, abs=1.5))
    seen.page.mouse.move(left + width / 2, top - 60)
    assert seen.page.locator("#tip").is_hidden()
    assert seen.console == []


def test_ranks_have_one_too_and_no_invisible_points_are_drawn(seen):
    seen.page.locator("#chart-clients").scroll_into_view_if_needed()
    left, top, width, height = seen.page.evaluate(PLOT, "chart-clients")
    seen.page.mouse.move(left + width - 2, top + height / 2)
    lines = seen.page.locator("#tip").inner_text().splitlines()
    assert lines == ["place\t4", "method 2\t80.0", "method 1\t75.0", "method 0\t70.0"]
    for name in ("learning-curves", "clients"):
        assert seen.page.locator(f"#chart-{name} path[aria-roledescription='point']").count() <= 3  # the lines' ends
