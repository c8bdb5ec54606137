"""A page on paper: light, as wide as the paper, whole."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.look.theme import DARK, LIGHT
from dfl_lightning.bench.report.writing import write_report

SEEN = """() => ({
  widths: [...document.querySelectorAll("figure .chart svg")].map((svg) =>
    [svg.closest("#cost") ? "half" : svg.closest(".four") ? "four" : svg.closest("figure").classList[0],
      Number(svg.getAttribute("width"))]),
  colours: document.querySelector("#learning .chart svg").outerHTML,
  canvases: document.querySelectorAll(".linked canvas").length,
  pictures: document.querySelectorAll(".linked img").length,
  folded: document.querySelectorAll("#how details:not([open])").length,
})"""


ALONE = {"selection": {"class_path": "Gossip", "init_args": {"k": 0}}}


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run, make_links):
    """Write a page of seven methods, three of them with three seeds; their many commands are folded."""
    folder, rng, words = tmp_path_factory.mktemp("page"), np.random.default_rng(0), []
    for number, name in enumerate(["AFIND+", "Gossip (k = 10)", "Local", *(f"method {n}" for n in range(4))]):
        for seed in range(3 if number < 3 else 1):
            run = make_run(
                folder / f"{number} {seed}",
                rng.uniform(0.4, 0.9, (3, 4)),
                make_links(rng, 3, 4, 2) if number < 2 else [],
                seed=seed,
                config=ALONE if name == "Local" else {"selection": {"class_path": f"M{number}"}},
                received=0.0 if name == "Local" else 4e8,
                commands=[(0, "dfl-fit --config ours " * 9)],
            )
            head, *lines = (run / "metrics.csv").read_text().splitlines()
            lines = [f"{head},threshold,models_received", *(f"{line},0.{number + 1},{9 + seed}" for line in lines)]
            (run / "metrics.csv").write_text("\n".join(lines) + "\n")
            words.append(f"{name}={run}")
    return write_report(words, folder / "page.html")


@pytest.fixture
def printed(page, open_page):
    """Return the state of the page before printing, while the browser lays it out for paper, and afterwards."""
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


@pytest.mark.slow
def test_printed_charts_are_light_and_fill_their_width(printed):
    before, found, after = printed
    assert DARK["category"][0] in before["colours"]
    assert DARK["category"][0] not in found["colours"]
    assert LIGHT["category"][0] in found["colours"]
    # wider than on paper: type is smaller there
    wanted = {"wide": 900, "half": 440, "square": 240, "small": 290, "four": 208}
    assert {shape for shape, _ in found["widths"]} == set(wanted)
    assert len(found["widths"]) == len(before["widths"])
    for shape, width in found["widths"]:
        assert width == pytest.approx(wanted[shape], abs=2)
    assert (before["canvases"], found["canvases"], found["pictures"]) == (2, 0, 2)
    assert (before["folded"], found["folded"]) == (1, 0)
    assert DARK["category"][0] in after["colours"]
    names = ("widths", "canvases", "pictures", "folded")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


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


@pytest.fixture
def paper(page, open_page):
    """Open the page as wide as an A4 with its margins, with the styles of paper."""
    seen = open_page(page, width=718)
    seen.page.emulate_media(media="print")
    seen.page.evaluate("for (const part of document.querySelectorAll('#how details')) part.open = true")
    return seen.page


@pytest.mark.slow
def test_headings_and_rows_are_not_separated_by_page_breaks(paper):
    """Headings stay with their chart or table; no row and no small chart is alone on a page."""

    def rules(parts, rule):
        return set(paper.locator(parts).evaluate_all(f"all => all.map((one) => getComputedStyle(one).{rule})"))

    assert rules("h2, h3, h4, figcaption, .note:not(:last-child), #state", "breakAfter") == {"avoid"}
    assert rules("tbody tr:first-child", "breakAfter") == rules("tbody tr:last-child", "breakBefore") == {"avoid"}
    bands = paper.locator("#learning figure.small").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert sorted(Counter(bands).values()) == [3, 4]
    halves = paper.locator("figure.half, #cost figure.wide")
    shares = halves.evaluate_all("all => all.map((one) => one.offsetWidth / one.parentElement.offsetWidth)")
    assert len(shares) >= 2
    assert max(shares) < 0.5


def test_printed_text_is_readable_and_not_cut_off(paper):
    sizes = paper.evaluate(SMALLEST)
    assert any("CODE" in name for name in sizes)
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size < 7 * 96 / 72 - 0.01} == {}
    rows = paper.locator("table.verdict tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert len(rows) == 7
    assert max(rows) < 36  # two lines, the second of intervals
    tables = paper.locator("table:visible").evaluate_all(
        "tables => tables.map(table => [table.className, table.getBoundingClientRect().right])"
    )
    assert {name for name, _ in tables} >= {"verdict", "commands"}
    for name, right in tables:
        assert right <= 719, name
    assert paper.locator("#how details table").is_visible()
    for shown in ("nav", "#choosing", "#trouble .choosing", "footer", ".numbers >> nth=0"):  # what only a screen can do
        assert not paper.locator(shown).is_visible()
    assert paper.locator("#shown-run").is_visible()  # the field of the run is not
    words = paper.locator("#ramp span")
    words.evaluate("(words) => (words.textContent = `weight in the new model; ${'and more '.repeat(9)}`)")
    assert words.bounding_box()["x"] + words.bounding_box()["width"] <= 719


PLACES = """() => [...document.querySelectorAll("table.verdict td[data-is]")].flatMap((cell) => {
  const [number, around] = ["b", "i"].map((part) => cell.querySelector(part)?.getBoundingClientRect());
  return around ? [[cell.dataset.is, around.top < number.bottom - 4, around.left >= number.right]] : [];
})"""


def test_deviations_stand_next_to_their_means_on_paper_and_screen(paper, page, open_page):
    for found in (paper.evaluate(PLACES), open_page(page, everything=False).page.evaluate(PLACES)):
        places = {(*place,) for place in found}
        assert {name for name, *_ in places} >= {"score", "worst", "best", "local", "received", "models"}
        for name, in_line, to_the_right in places:
            assert (in_line, to_the_right) == ((name not in ("best", "local"),) * 2), name


def test_paper_has_no_empty_column_and_no_sentence_over_another(paper):
    lead, said = (paper.locator(f"header {part}").last.bounding_box() for part in (".lead", ".health"))
    assert lead["y"] + lead["height"] <= said["y"]
    assert not paper.locator(".health a").is_visible()  # the table of trouble follows
    heads = paper.locator(".repeating thead th:visible").all_inner_texts()
    assert heads == ["method", "seeds", "split", "test data", "needs"]
    assert paper.locator(".reaching caption").inner_text().startswith("Until test accuracy is ")
