"""Charts are drawn when they come near the screen, and all of them for paper."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.look.theme import DARK
from dfl_lightning.bench.report.writing import write_report

DRAWN = "[...document.querySelectorAll('.chart:has(svg)')].map((chart) => chart.id)"
FAR = """[...document.querySelectorAll('[data-chart]')].filter((chart) => {
  const box = chart.getBoundingClientRect();
  return box.top > innerHeight + 600 || box.bottom < -600;
}).map((chart) => chart.id)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run):
    """Write a page of methods with a chart of bands each, which fill some screens."""
    folder, words = tmp_path_factory.mktemp("page"), []
    for number in range(12):
        level = np.full((3, 4), 0.5 + number / 40) + np.linspace(-0.1, 0.1, 4)
        run = make_run(folder / str(number), level, config={"selection": {"class_path": f"M{number}"}})
        words.append(f"method {number}={run}")
    return write_report(words, folder / "page.html")


def test_only_charts_near_the_screen_are_drawn(page, open_page, until):
    seen = open_page(page, everything=False)
    seen.page.set_default_timeout(10_000)
    assert not set(seen.page.evaluate(FAR)) & set(seen.page.evaluate(DRAWN))
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    until(seen, f"({DRAWN}).includes('chart-learning-curves')")
    far, drawn = seen.page.evaluate(FAR), seen.page.evaluate(DRAWN)
    assert len(far) >= 3
    assert not set(far) & set(drawn)
    heights = "[...document.querySelectorAll('[data-chart]')].map((chart) => chart.offsetHeight)"
    empty, place = seen.page.evaluate(heights), seen.page.evaluate("document.getElementById('how').offsetTop")
    seen.page.locator("#cost").scroll_into_view_if_needed()
    until(seen, f"({DRAWN}).includes('chart-accuracy-by-bytes')")
    seen.page.evaluate("window.report.whole()")
    assert len(seen.page.evaluate(DRAWN)) == len(empty)
    assert seen.page.evaluate(heights) == pytest.approx(empty, abs=6)
    assert abs(seen.page.evaluate("document.getElementById('how').offsetTop") - place) < 20
    assert seen.console == []


def test_links_are_drawn_when_near_or_asked_for(tmp_path, make_run, make_links, open_page, until):
    words = []
    for number in range(4):
        config = {"selection": {"class_path": f"M{number}"}}
        links = make_links(np.random.default_rng(number), 3, 6, 2)
        words.append(str(make_run(tmp_path / str(number), [[0.5 + number / 40] * 6] * 3, links, config=config)))
    page = write_report(words, tmp_path / "page.html")
    seen = open_page(page, everything=False)
    drawn = "Boolean(window.report.views.graph)"
    assert seen.page.evaluate("document.getElementById('who').getBoundingClientRect().top > innerHeight + 600")
    assert not seen.page.evaluate(drawn)
    seen.page.locator("#who").scroll_into_view_if_needed()
    until(seen, drawn)
    assert seen.page.locator("#state b").first.inner_text() == "Round 3"
    again = open_page(page, everything=False)
    again.page.evaluate("window.report.move(0)")
    until(again, drawn)
    until(again, "document.querySelector('#state b').textContent === 'Round 1'")
    named = open_page(page, everything=False)
    named.page.evaluate("location.hash = '#who?run=M1&round=2&client=3'")
    until(named, "document.querySelector('#state b').textContent === 'Round 2'")
    assert seen.console == again.console == named.console == []


@pytest.mark.slow
def test_theme_change_redraws_visible_charts_first(page, open_page, until):
    seen = open_page(page)
    seen.page.click("#theme")
    until(seen, "window.report.drawn >= 2")
    far = seen.page.evaluate(FAR)
    assert "chart-accuracy-by-bytes" in far
    assert not set(far) & set(seen.page.evaluate(DRAWN))
    seen.page.locator("#cost").scroll_into_view_if_needed()
    until(seen, f"({DRAWN}).includes('chart-accuracy-by-bytes')")
    assert DARK["category"][0] in seen.page.locator("#chart-accuracy-by-bytes").inner_html()
    assert seen.console == []


@pytest.mark.slow
def test_printing_draws_all_charts(page, open_page):
    seen = open_page(page, everything=False)
    look = "matchMedia('print').addEventListener('change', (e) => { if (e.matches) window.printed = DRAWN.length; })"
    seen.page.add_script_tag(content=look.replace("DRAWN", DRAWN))
    seen.page.pdf()
    assert seen.page.evaluate("window.printed") == seen.page.locator("[data-chart]:not(#chart-columns)").count()
