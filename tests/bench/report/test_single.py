"""A click on a method's name singles it out in every chart."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.charts import base
from dfl_lightning.bench.report.writing import write_report

METHODS, WITHOUT_LABEL = 18, "method 1"
"""More than there is room for labels, and one of those without."""
CHARTS = ("learning-curves", "columns", "clients", "gain-over-local", "front-by-bytes", "accuracy-by-bytes")

OPACITIES = """() => Object.fromEntries([...document.querySelectorAll("[data-chart]")].map((chart) => {
  const found = {}, whole = Number(getComputedStyle(chart).opacity);
  for (const part of chart.querySelectorAll("svg path, svg text")) {
    const method = part.__data__?.datum?.method, opacity = Number(getComputedStyle(part).opacity);
    if (!method || part.__data__.opacity === 0) continue;
    (found[method] ??= []).push(opacity * whole);
  }
  return [chart.id, found];
}))"""
INVISIBLE = """() => [...document.querySelectorAll("[data-chart] path")].filter((part) => part.__data__?.opacity === 0
  && part.__data__.datum?.method && Number(getComputedStyle(part).opacity) > 0).length"""
BANDS = """(figures) => figures.map((figure) =>
  [figure.dataset.method, Number(getComputedStyle(figure.querySelector(".chart")).opacity) < 0.3])"""
PRESSED = "[...document.querySelectorAll('[data-single][aria-pressed=true]')].map((button) => button.dataset.single)"


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run):
    """Write a page of methods, some without labels in charts, and training alone."""
    folder, words = tmp_path_factory.mktemp("page"), []
    for number in range(METHODS):
        level = np.full((3, 4), 0.5 + number / 80) + np.linspace(-0.1, 0.1, 4)
        run = make_run(folder / str(number), level, config={"selection": {"class_path": f"M{number}"}})
        words.append(f"method {number}={run}")
    alone = {"selection": {"class_path": "Gossip", "init_args": {"k": 0}}}
    words.append(f"Local={make_run(folder / 'alone', np.full((3, 4), 0.45), received=0.0, config=alone)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "TALLEST", base.HEIGHT)  # so that some have no label
        return write_report(words, folder / "page.html")


def faint_in(seen):
    """Find the methods whose marks are all faint, for each chart of several methods."""
    found = {}
    for chart, methods in seen.page.evaluate(OPACITIES).items():
        if len(methods) > 1:
            found[chart] = {method for method, opacities in methods.items() if max(opacities) <= 0.11}
            assert all(min(o) > 0.4 for method, o in methods.items() if method not in found[chart]), chart
    return found


def test_click_singles_out_a_method_and_escape_resets_it(page, open_page):
    seen = open_page(page)
    name = seen.page.locator(f".verdict [data-single='{WITHOUT_LABEL}']")
    everything = {f"method {number}" for number in range(METHODS)} | {"Local"}
    for back in (name.click, lambda: seen.page.keyboard.press("Escape"), lambda: seen.page.click("#single button")):
        name.focus()
        seen.page.keyboard.press("Enter")
        faint = faint_in(seen)
        assert set(faint) == {f"chart-{name}" for name in CHARTS}
        for chart, methods in faint.items():
            there = everything - {"Local"} if chart == "chart-gain-over-local" else everything
            assert methods == there - {WITHOUT_LABEL}, chart
        assert seen.page.locator("#chart-learning-curves .ended").inner_text() == WITHOUT_LABEL
        bands = seen.page.locator("#learning figure.small").evaluate_all(BANDS)
        assert len(bands) == 16
        assert all(is_faint == (method != WITHOUT_LABEL) for method, is_faint in bands)
        assert set(seen.page.evaluate(PRESSED)) == {WITHOUT_LABEL}
        assert seen.page.locator("#single").inner_text().split("\n")[0] == f"Singled out: {WITHOUT_LABEL}"
        assert seen.page.evaluate(INVISIBLE) == 0
        back()
        assert not any(faint_in(seen).values())
        assert seen.page.evaluate(PRESSED) == []
        assert seen.page.locator("#single").is_hidden()
        assert seen.page.locator(".ended").count() == 0
    assert seen.console == []


@pytest.mark.slow
def test_pointer_lists_methods_near_it_or_near_the_selected(page, open_page):
    seen = open_page(page)
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    box = seen.page.locator("#chart-learning-curves svg .root .background").first.bounding_box()
    x, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"] - 2

    def said():
        return [line.split("\t")[0] for line in seen.page.locator("#tip").inner_text().splitlines()]

    order = [f"method {number}" for number in reversed(range(METHODS))] + ["Local"]
    seen.page.mouse.move(x, bottom)
    assert said() == ["round", "3 above", *order[3:]]
    seen.page.evaluate(f"single.choose('method {METHODS - 1}')")
    seen.page.mouse.move(x + 1, bottom)
    assert said() == ["round", *order[:16], "3 below"]


@pytest.mark.slow
def test_names_and_lines_are_clickable_and_address_keeps_the_method(page, open_page, redrawn, until):
    seen = open_page(page)
    for chart, name in (("gain-over-local", "method 3"), ("learning-curves", f"method {METHODS - 1}")):
        seen.page.locator(f"#chart-{chart} text", has_text=name).last.click()  # at an axis, and at the end of a line
        assert name not in faint_in(seen)["chart-learning-curves"]
    line = seen.page.locator("#chart-learning-curves .mark-line path").last
    line.dispatch_event("click", {"bubbles": True})
    assert seen.page.evaluate("single.now()") == line.evaluate("(line) => line.__data__.datum.method")
    seen.page.click(f".verdict [data-single='{WITHOUT_LABEL}']")
    until(seen, "location.hash === '#verdict?method=method+1'")
    seen.page.click("nav [href='#cost']")
    until(seen, "location.hash === '#cost?method=method+1'")
    seen.page.reload()
    redrawn(seen)
    assert set(seen.page.evaluate(PRESSED)) == {WITHOUT_LABEL}
    # Charts above it are drawn when it comes near, and it stays where it is. A browser that restored the old place by a
    # smooth scroll would sometimes continue with it afterwards.
    assert seen.page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    until(seen, "Math.abs(document.getElementById('cost').getBoundingClientRect().top - 68) < 20")
    seen.page.click("#theme")
    redrawn(seen, times=2)
    assert len(faint_in(seen)["chart-accuracy-by-bytes"]) == METHODS
    seen.page.emulate_media(media="print")
    assert not any(faint_in(seen).values())  # paper shows all
    assert seen.page.locator("#single").is_hidden()
    assert seen.page.locator("#verdict .name").first.is_visible()
    seen.page.emulate_media(media="screen")
    seen.page.keyboard.press("Escape")
    until(seen, "!location.href.includes('#')")
    assert seen.console == []


def test_pointing_at_a_shortened_name_says_all_settings(tmp_path, make_run, open_page, until):
    named = []
    for kind in ("cosine", "distance"):
        for rate in (0.01, 0.05):
            selection = {"class_path": "dfl_lightning.callbacks.AFIND", "init_args": {"similarity": kind}}
            config = {"selection": selection, "model": {"optimizer": {"init_args": {"lr": rate}}}}
            named.append(str(make_run(tmp_path / f"{kind} {rate}", np.full((3, 4), rate + 0.5), config=config)))
    seen = open_page(write_report(named, tmp_path / "page.html"))
    name = seen.page.locator("#chart-learning-curves .mark-text text").filter(has_text="distance 0.05").last
    name.hover()
    until(seen, "document.querySelector('#vg-tooltip-element.visible') !== null")
    assert "(similarity = distance, lr = 0.05)" in seen.page.locator("#vg-tooltip-element").inner_text()
    assert seen.console == []
