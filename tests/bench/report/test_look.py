"""The look of pages: constant colours, tables that fit or show that they are cut, no empty columns."""

import re

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.utils.score import Score

NAMES = [
    *("AFIND+", "Gossip", "PANM", "DPFL", "FedAvg", "FL-FDMS"),
    *("Ditto", "FedProx", "pFedGraph", "APFL", "FedPer", "Dis-PFL"),
]
COLOURS = 13


def test_a_method_has_one_colour_on_all_pages():
    colours = {name: colour_places(NAMES).index(name) % COLOURS for name in NAMES}
    assert sorted(colours.values()) == list(range(COLOURS - 1))
    many_gossips = [f"Gossip (k = {k})" for k in range(1, 9)]
    for names in (
        ["Gossip"],
        [*many_gossips, "PANM", "DPFL"],
        ["PANM", "Local", "Gossip"],
        ["A new one", "Another", *NAMES[:3]],
        NAMES[::-1],
    ):
        places = colour_places(names)
        for name in set(names) & set(NAMES):
            assert places.index(name) % COLOURS == colours[name]
    assert colour_places(["Gossip (k = 5)", "Local"]).index("Gossip (k = 5)") % COLOURS == colours["Gossip"]
    assert colour_places(["mine", "Local"])[COLOURS - 1] == "Local"
    many = [f"method {number}" for number in range(30)]
    assert {name for name in colour_places(many) if name.strip()} == set(many)
    assert all(not name.strip() for name in colour_places(many)[COLOURS - 1 :: COLOURS])  # the grey of training alone


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run, make_links):
    folder, rng, found = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), []
    for name, k in (("AFIND", 3), ("Gossip", 3), ("Gossip", 0)):
        for seed in range(3):
            run = make_run(
                folder / f"{name} {k} {seed}",
                rng.uniform(0.6, 0.9, (3, 6)),
                make_links(rng, 3, 6, k) if k else [],
                seed=seed,
                received=3e6 if k else 0.0,
                config={"selection": {"class_path": name, "init_args": {"k": k}}},
            )
            if k:
                similarity = rng.uniform(-0.5 if name == "AFIND" else 0.2, 0.9, (1, 6, 6))
                np.savez(run / "comparisons.npz", rounds=[2], similarity=similarity, threshold=np.zeros((1, 6)))
            found.append(run)
    return found


def test_matrices_of_one_kind_share_one_scale(runs):
    methods = find_methods([read_run(run) for run in runs])
    drawn = figures(methods)

    def domains(section):
        return [figure.spec["encoding"]["color"]["scale"]["domain"] for figure in drawn if figure.section == section]

    assert domains("over") == [[0, 1]] * 2
    pairs = [read_run(runs[at]).comparisons["similarity"][0][~np.eye(6, dtype=bool)] for at in (0, 3)]
    ends = [[pytest.approx(values.min()), pytest.approx(values.max())] for values in pairs]
    assert domains("alike") in (ends, ends[::-1])  # two policies, whose scores may be losses and cosines
    assert all("seed 0, round 3, " in figure.note.lower() for figure in drawn if figure.section == "alike")


def test_matrices_of_similarities_are_of_one_round(tmp_path, make_run):
    """The least and the largest of two runs of one policy; one has not recorded the last round."""
    made, rng = [], np.random.default_rng(0)
    found = {name: rng.uniform(-1, 1, (3, 4, 4)) for name in ("a", "b")}
    for name, values in found.items():
        config = {"selection": {"class_path": "Ours", "init_args": {"temperature": name}}}
        run = make_run(tmp_path / name, np.full((3, 4), 0.5), config=config, dropouts=[(1, 2)])
        rounds = [0, 1, 2][: 3 if name == "a" else 2]
        np.savez(run / "comparisons.npz", rounds=rounds, similarity=values[: len(rounds)])
        made.append(run)
    drawn = figures(find_methods([read_run(run) for run in made]))
    alike = [figure for figure in drawn if figure.section == "alike"]
    pairs = np.concatenate([values[1][~np.eye(4, dtype=bool)] for values in found.values()])
    for figure in alike:
        domain = figure.spec["encoding"]["color"]["scale"]["domain"]
        assert domain == [pytest.approx(pairs.min()), pytest.approx(pairs.max())]
        assert "round 2" in figure.note
    assert len(alike) == 2
    (dropouts,) = [figure for figure in drawn if figure.section == "dropouts"]  # which both runs have
    assert all(name in dropouts.title for name in ("temperature = a", "temperature = b"))


def test_page_of_one_run_has_settings_and_no_dashes(runs):
    text = page(find_methods([read_run(runs[0])]))
    table = re.search(r"<table class='verdict'>(.*?)</table>", text, re.DOTALL)[1]
    assert "to the best" not in table
    assert ">–<" not in table
    assert "<h2>Settings</h2>" in text
    assert "AFIND: k = 3" in re.sub("<wbr>", "", text)


def test_numbers_that_are_zero_have_no_sign_and_no_spread():
    assert [Score().signed(value) for value in (-0.0004, 0.0, 0.0006, -0.0006)] == ["0.0", "0.0", "+0.1", "−0.1"]


OUTSIDE = """() => [...document.querySelectorAll("main :is(p, h3, h4), caption span, .controls > *")].filter((part) => {
  const box = part.getBoundingClientRect(), card = part.closest("section").getBoundingClientRect();
  return box.width && (box.right > card.right - 8 || box.left < card.left);
}).map((part) => part.textContent)"""
FITS = """() => [...document.querySelectorAll("#verdict .scroll")].map((box) => box.scrollWidth - box.clientWidth)"""
MISMATCHED = """() => [...document.querySelectorAll("button[aria-label], summary[aria-label]")]
  .filter((part) => part.textContent.trim()
    && !part.getAttribute("aria-label").toLowerCase().includes(part.textContent.trim().toLowerCase()))
  .map((part) => part.outerHTML)"""


def test_the_verdict_of_long_names_fits_on_a_wide_screen(tmp_path, make_run, open_page):
    named, rng = [], np.random.default_rng(0)
    for number in range(3):
        config = {"selection": {"class_path": f"M{number}", "init_args": {"k": 0} if not number else {}}}
        for seed in range(3):
            scores = rng.uniform(0.2, 0.9, (3, 6))
            run = make_run(tmp_path / f"{number} {seed}", scores, seed=seed, received=3e5 * number, config=config)
            head, *lines = (run / "metrics.csv").read_text().splitlines()
            counted = "\n".join([f"{head},models_received", *(f"{line},{number}.5" for line in lines)])
            (run / "metrics.csv").write_text(counted + "\n")
            named.append(f"Gossip (k = {number}, lr = 3000.0)={run}")
    seen = open_page(write_report(named, tmp_path / "page.html"), 1440, everything=False)
    assert seen.page.locator(".verdict thead th").count() == 9
    assert max(seen.page.evaluate(FITS)) <= 0
    names = seen.page.locator(".verdict tbody th .name")
    assert max(names.evaluate_all("all => all.map((name) => name.offsetHeight)")) < 40  # in one line


def test_sentences_tables_and_labels_fit_on_tablets(runs, tmp_path, open_page, redrawn):
    seen = open_page(write_report(runs, tmp_path / "page.html"), 1024, everything=False)
    for width in (1024, 768, 900):
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.page.evaluate(OUTSIDE) == [], width
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        if width > 860:
            assert set(seen.page.evaluate(FITS)) == {0}, width
    assert seen.page.evaluate(MISMATCHED) == []
    assert seen.console == []
