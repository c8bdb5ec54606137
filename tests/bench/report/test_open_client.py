"""The field that opens a client, whom it chose in a round, and the way back; against the files of the runs."""

import re

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page import rounds
from dfl_lightning.bench.report.writing import write_report

ROUNDS, CLIENTS = 6, 8
CLUSTERS = [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, make_links):
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("runs")
    links = make_links(rng, ROUNDS, CLIENTS, 3, probes=1)
    config = {"selection": {"class_path": "Ours"}}
    scores = rng.uniform(0.5, 0.9, (ROUNDS, CLIENTS))
    return make_run(folder / "run", scores, links, clusters=CLUSTERS, dropouts=[(3, 7)], config=config)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory, make_run):
    alone = make_run(
        tmp_path_factory.mktemp("alone") / "run",
        np.full((ROUNDS, CLIENTS), 0.5),
        received=0.0,
        config={"selection": {"class_path": "Gossip", "init_args": {"k": 0}}},
    )
    return write_report([run, alone], tmp_path_factory.mktemp("page") / "page.html")


def senders(run, client, r):
    """Return whom a client chose in a round, 0-based, from graphs.npz."""
    with np.load(run / "graphs.npz") as graphs:
        rows = zip(*(graphs[name].tolist() for name in ("round", "receiver", "sender", "selected")), strict=True)
        return {j for at, i, j, selected in rows if (at, i) == (r, client) and selected}


def listed(words, before):
    """Read the numbers of a list in words, such as `1, 2 and 5`, that ends with these words; empty without it."""
    found = re.search(rf"((?:\d+(?:, | and )?)+) {before}", words)
    return set(map(int, re.findall(r"\d+", found[1]))) if found else set()


def test_a_number_opens_a_client_and_a_round_its_senders(run, page, open_page, until):
    seen = open_page(page)
    seen.page.locator("#open-id").fill("7")
    seen.page.locator("#open-id").press("Enter")
    until(seen, "document.getElementById('one-name').textContent === 'Client 7'")
    said = seen.page.locator("#one-chose")
    for r in (5, 3, 1):
        seen.page.locator("#one-at").fill(str(r + 1))
        until(seen, "(n) => document.getElementById('one-chose').textContent.startsWith(`In round ${n} `)", r + 1)
        words, now, before = said.inner_text(), senders(run, 7, r), senders(run, 7, r - 1)
        assert listed(words, "of its own cluster") == {j for j in now if CLUSTERS[j] == 1}
        assert listed(words, "of other clusters") == {j for j in now if CLUSTERS[j] == 0}
        gone = re.search(r"no longer ([\d, and]+)", words)
        assert set(map(int, re.findall(r"\d+", gone[1] if gone else ""))) == before - now
        assert ("It dropped out." in words) == (r == 3)
        assert seen.page.evaluate("window.report.now().round") == r + 1
    seen.page.locator("#open-id").fill("8")  # there is none
    seen.page.locator("#open-id").press("Enter")
    assert seen.page.locator("#one-name").inner_text() == "Client 7"
    assert seen.console == []


def test_the_links_to_sections_stay_and_a_client_leads_back(page, open_page, until):
    seen = open_page(page)
    assert seen.page.locator("#one-back").is_hidden()
    seen.page.locator("#chart-gain-over-local").scroll_into_view_if_needed()
    top = seen.page.evaluate("scrollY")
    assert top > 200
    seen.page.locator("#chart-gain-over-local .mark-symbol path").first.click()
    until(seen, "!document.getElementById('one-back').hidden")
    until(seen, "(top) => Math.abs(scrollY - top) > 200", top)
    bar = seen.page.locator("nav").bounding_box()
    assert bar["y"] == 0
    assert seen.page.locator("#one").bounding_box()["y"] >= bar["height"]
    seen.page.locator("#one-back").click()
    until(seen, "(top) => Math.abs(scrollY - top) < 2", top)
    assert seen.page.locator("#one-back").is_hidden()
    seen.page.get_by_role("link", name="Trouble", exact=True).click()
    until(seen, "document.getElementById('trouble').getBoundingClientRect().top < 100")
    assert seen.page.locator("#trouble").bounding_box()["y"] >= bar["height"]
    assert seen.console == []


def test_the_way_back_leads_to_the_element(page, open_page, until):
    seen = open_page(page)
    dot = seen.page.locator("#chart-gain-over-local .mark-symbol path").first
    dot.scroll_into_view_if_needed()
    place = dot.bounding_box()["y"]
    dot.click()
    until(seen, "!document.getElementById('one').hidden")
    seen.page.evaluate("document.getElementById('verdict').style.paddingBottom = '700px'")
    seen.page.locator("#one-back").click()
    until(seen, "document.getElementById('one-back').hidden")
    assert dot.bounding_box()["y"] == pytest.approx(place, abs=2)
    seen.page.evaluate("document.getElementById('verdict').style.paddingBottom = '900px'")  # as of a chart drawn late
    seen.page.wait_for_timeout(200)
    assert dot.bounding_box()["y"] == pytest.approx(place, abs=2)
    assert seen.console == []


def test_words_of_gains_are_whole_on_a_phone(tmp_path, make_run, open_page):
    runs = []
    for name, k, ends in (
        ("Local", 0, (0.5, 0.5)),
        ("Up", 1, (0.85, 0.9)),
        ("Down", 2, (0.1, 0.2)),
        ("Near", 3, (0.3, 0.6)),
    ):
        config = {"selection": {"class_path": "Gossip", "init_args": {"k": k}}}
        scores = np.tile(np.linspace(*ends, CLIENTS), (2, 1))
        runs.append(f"{name}={make_run(tmp_path / name, scores, received=float(k), config=config)}")
    seen = open_page(write_report(runs, tmp_path / "page.html"), 390)
    chart = seen.page.locator("#chart-gain-over-local")
    texts = chart.locator("text", has_text=" lose")
    box, boxes = chart.bounding_box(), [text.bounding_box() for text in texts.all()]
    assert len(boxes) >= 3
    for text in boxes:
        assert box["x"] <= text["x"]
        assert text["x"] + text["width"] <= box["x"] + box["width"]
    scroll = seen.page.locator(".scroll:has(> .losers)")
    assert scroll.evaluate("(part) => part.scrollWidth <= part.clientWidth")


def test_the_field_has_the_open_client(page, open_page, until):
    seen = open_page(page)
    field = seen.page.locator("#open-id")
    assert field.input_value() == ""
    seen.page.locator("#chart-gain-over-local .mark-symbol path").first.click()
    until(seen, "!document.getElementById('one').hidden")
    assert f"Client {field.input_value()}" == seen.page.locator("#one-name").inner_text()
    seen.page.locator("#one-close").click()
    assert field.input_value() == ""
    named = open_page(page)
    named.page.goto(f"{page.as_uri()}#who?run=Ours&round=3&client=6")
    until(named, "document.getElementById('one-name').textContent === 'Client 6'")
    assert named.page.locator("#open-id").input_value() == "6"
    assert seen.console == named.console == []


@pytest.mark.parametrize("width", [1440, 390])
def test_links_to_sections_take_one_line(page, open_page, width):
    seen = open_page(page, width, everything=False)
    assert seen.page.locator("nav").bounding_box()["height"] < 60
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_is_too_wide_says_that_it_scrolls(page, open_page, until):
    seen = open_page(page, 390, everything=False)
    bar, on, hint = (
        seen.page.locator(part) for part in ("nav > div", "#more-links", "#verdict .more-columns >> nth=0")
    )
    assert on.is_visible()
    assert bar.bounding_box()["x"] + bar.bounding_box()["width"] <= on.bounding_box()["x"] + 8.5
    for _ in range(9):
        if "at-end" in (on.get_attribute("class") or ""):
            break
        left = bar.evaluate("(bar) => bar.scrollLeft")
        on.click()
        until(seen, "(left) => document.querySelector('nav > div').scrollLeft > left + 20", left)
        seen.page.wait_for_timeout(400)  # until the smooth scrolling has ended
    assert seen.page.get_by_role("link", name="Reproduction").bounding_box()["x"] < on.bounding_box()["x"]
    assert hint.is_visible()
    seen.page.locator("#verdict .scroll").first.evaluate("(table) => (table.scrollLeft = table.scrollWidth)")
    until(seen, "getComputedStyle(document.querySelector('#verdict .more-columns')).visibility === 'hidden'")
    seen.page.set_viewport_size({"width": 1440, "height": 900})
    until(seen, "document.getElementById('more-links').hidden")
    until(seen, "document.querySelector('#verdict .more-columns').hidden")
    assert seen.console == []


def test_a_sentence_stands_where_rounds_are_unknown(page, open_page, until):
    seen = open_page(page)
    alone = "A round cannot be chosen: clients train alone here."
    for name, why in (("Ours, seed 0", ""), ("Local, seed 0", alone)):
        seen.page.locator("#run").select_option(label=name)
        seen.page.locator("#open-id").fill("2")
        seen.page.locator("#open-id").press("Enter")
        until(seen, "document.getElementById('one-name').textContent === 'Client 2'")
        assert seen.page.locator("#one-round").is_visible() is not bool(why)
        assert seen.page.locator("#one-unknown").is_visible() is bool(why)
        assert seen.page.locator("#one-unknown").inner_text() == why
    seen.page.locator("#one-close").click()
    assert seen.page.locator("#one-unknown").is_hidden()
    assert seen.console == []


def test_each_reason_for_unknown_rounds_has_its_words(tmp_path, make_run, make_links, monkeypatch):
    links, level = make_links(np.random.default_rng(4), 2, 4, 2), np.full((2, 4), 0.5)
    to_server = [(r, receiver, sender, 0.2, True, False) for r in range(2) for receiver, sender in ((4, 0), (0, 4))]
    named = {"none": [], "linked": links, "server": to_server}
    config = {"selection": {"class_path": "Ours"}}
    runs = {name: read_run(make_run(tmp_path / name, level, of_run, config=config)) for name, of_run in named.items()}
    methods = {name: find_methods([run])[0] for name, run in runs.items()}
    assert rounds.run_entry(methods["none"], runs["none"]) is None
    assert "unknown" not in rounds.run_entry(methods["linked"], runs["linked"])
    assert "learn from a server" in rounds.run_entry(methods["server"], runs["server"])["unknown"]
    assert "recorded no links" in rounds.light_entry(methods["none"], runs["none"])["unknown"]
    assert "graphs of some runs only" in rounds.light_entry(methods["linked"], runs["linked"])["unknown"]
    monkeypatch.setattr(rounds, "MOST_LINKS", 5)
    assert "more than 5 links in a round" in rounds.run_entry(methods["linked"], runs["linked"])["unknown"]
