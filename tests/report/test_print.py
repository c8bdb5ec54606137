"""A page on paper: light, as wide as the paper, whole."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.report.charts.theme import DARK, LIGHT
from dfl_lightning.report.writing import write_report

SEEN = """() => ({
  widths: [...document.querySelectorAll("figure .chart svg")].map((svg) =>
    [svg.closest("#cost") ? "half" : svg.closest("figure").classList[0], Number(svg.getAttribute("width"))]),
  colours: document.querySelector("#learning .chart svg").outerHTML,
  canvases: document.querySelectorAll(".linked canvas").length,
  pictures: document.querySelectorAll(".linked img").length,
  folded: document.querySelectorAll("#how details:not([open])").length,
})"""


@pytest.fixture
def page(tmp_path, make_run, make_links, monkeypatch):
    """Of a method, whose commands are folded."""
    monkeypatch.setattr("dfl_lightning.report.page.tables.MOST_RUNS", 1)
    rng = np.random.default_rng(0)
    about = {"config": {"selection": {"class_path": "Ours"}}, "commands": [(0, "dfl-fit --config ours " * 9)]}
    runs = [
        make_run(tmp_path / str(seed), rng.uniform(0.4, 0.9, (3, 4)), make_links(rng, 3, 4, 2), seed=seed, **about)
        for seed in (0, 1)
    ]
    return write_report(runs, tmp_path / "page.html")


@pytest.fixture
def printed(page, open_page):
    """What the browser has in front of it when it lays the page out for paper, and what it shows afterwards."""
    seen = open_page(page, scheme="dark")
    before = seen.page.evaluate(SEEN)
    look = f"matchMedia('print').addEventListener('change', (e) => {{ if (e.matches) window.printed = ({SEEN})(); }})"
    seen.page.add_script_tag(content=look)
    seen.page.pdf()
    found = seen.page.evaluate("window.printed")
    for _ in range(200):
        if seen.page.evaluate("window.report.drawn >= 3"):
            break
        seen.page.wait_for_timeout(50)
    seen.page.evaluate("window.report.whole()")
    assert seen.console == []
    return before, found, seen.page.evaluate(SEEN)


def test_charts_are_light_and_as_wide_as_their_part_of_the_paper(printed):
    before, found, after = printed
    assert DARK["category"][0] in before["colours"]
    assert DARK["category"][0] not in found["colours"]
    assert LIGHT["category"][0] in found["colours"]
    wanted = {"wide": 900, "half": 440, "square": 240, "small": 290}  # wider than on paper: type is smaller there
    assert {shape for shape, _ in found["widths"]} == set(wanted)
    assert len(found["widths"]) == len(before["widths"])
    for shape, width in found["widths"]:
        assert width == pytest.approx(wanted[shape], abs=2)
    assert (before["canvases"], found["canvases"], found["pictures"]) == (2, 0, 2)
    assert (before["folded"], found["folded"]) == (1, 0)
    assert DARK["category"][0] in after["colours"]
    names = ("widths", "canvases", "pictures", "folded")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def test_nothing_stands_alone_at_the_end_of_a_page(page, open_page):
    """What leads to a chart or a table stays with it, and what only a screen can do is not said."""
    seen = open_page(page)
    files = seen.page.locator("#learning figure").first.locator(".numbers, .save").all()
    assert len({round(part.bounding_box()["y"] + part.bounding_box()["height"] / 2) // 4 for part in files}) == 1
    seen.page.emulate_media(media="print")
    leading = "h2, h3, h4, figcaption, .note:not(:last-child), #state"
    rules = seen.page.locator(leading).evaluate_all("parts => parts.map((part) => getComputedStyle(part).breakAfter)")
    assert set(rules) == {"avoid"}
    for shown in (".choosing", "footer", ".numbers >> nth=0"):
        assert not seen.page.locator(shown).is_visible()


SMALLEST = """() => {
  const sizes = {};
  for (const part of document.querySelectorAll("body *:not(script, style, svg, svg *)")) {
    const words = [...part.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!words || !part.checkVisibility()) continue;
    const place = `${part.closest("section")?.id} ${part.tagName} ${part.className}`;
    sizes[place] = parseFloat(getComputedStyle(part).fontSize);
  }
  return sizes;
}"""


def test_words_and_rows_can_be_read_on_paper_and_two_charts_stand_side_by_side(
    tmp_path, make_run, make_links, open_page
):
    rng = np.random.default_rng(0)
    names = {"AFIND+": "A", "Gossip (k = 10)": "B"}
    words = [
        f"{name}={make_run(tmp_path / f'{kind}{seed}', found, make_links(rng, 3, 4, 2), seed=seed, **about)}"
        for name, kind in names.items()
        for seed in range(3)
        for found, about in [
            (rng.uniform(0.4, 0.9, (3, 4)), {"config": {"selection": {"class_path": kind}}, "received": 4e8})
        ]
    ]
    alone = {"config": {"selection": {"class_path": "Gossip", "init_args": {"k": 0}}}, "received": 0.0}
    words += [
        f"Local={make_run(tmp_path / f'alone {seed}', np.full((3, 4), 0.2), seed=seed, **alone)}" for seed in range(3)
    ]
    seen = open_page(write_report(words, tmp_path / "page.html"), width=718)
    seen.page.emulate_media(media="print")
    seen.page.evaluate("for (const part of document.querySelectorAll('#how details')) part.open = true")
    sizes = seen.page.evaluate(SMALLEST)
    assert any("CODE" in name for name in sizes)
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size < 7 * 96 / 72 - 0.01} == {}
    rows = seen.page.locator("table.verdict tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert len(rows) == 3
    assert max(rows) < 30  # a line each, intervals of three seeds included
    halves = seen.page.locator("figure.half, #cost figure.wide")
    shares = halves.evaluate_all("all => all.map((one) => one.offsetWidth / one.parentElement.offsetWidth)")
    assert len(shares) >= 2
    assert max(shares) < 0.5


def test_no_table_is_cut_at_the_edge_of_the_paper(page, open_page):
    seen = open_page(page, width=718)  # of an A4 with its margins
    seen.page.emulate_media(media="print")
    seen.page.evaluate("for (const part of document.querySelectorAll('#how details')) part.open = true")
    tables = seen.page.locator("table:visible").evaluate_all(
        "tables => tables.map(table => [table.className, table.getBoundingClientRect().right])"
    )
    assert {name for name, _ in tables} >= {"verdict", "commands"}
    for name, right in tables:
        assert right <= 719, name
    assert seen.page.locator("#how details table").is_visible()
    assert not seen.page.locator("nav").is_visible()
    words = seen.page.locator("#ramp span")
    words.evaluate("(words) => (words.textContent = `weight in the new model; ${'and more '.repeat(9)}`)")
    assert words.bounding_box()["x"] + words.bounding_box()["width"] <= 719
