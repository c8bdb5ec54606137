"""The page of a study: methods are compared within a column, and have one name and one line in all of them."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from markupsafe import Markup

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.charts.colours import colour_places, method_dash
from dfl_lightning.bench.report.look.theme import DARK, LIGHT
from dfl_lightning.bench.report.methods import find_methods, names_for_colours
from dfl_lightning.bench.report.page.opening import Opening
from dfl_lightning.bench.report.page.sections import Figure, described, heading
from dfl_lightning.bench.report.page.tables import key
from dfl_lightning.bench.report.writing import write_page


def test_method_in_two_columns_has_one_name_and_colour(tmp_path, make_run):
    made = [make_run(tmp_path / name, [[0.5, 0.6]]) for name in ("Ax", "Ay", "Bx", "By")]  # all tested on the same
    found = find_methods([read_run(folder) for folder in made], ["A", "A", "B", "B"], ["x", "y", "x", "y"])
    assert [(m.name, m.column, m.task) for m in found] == [("A", "x", 0), ("A", "y", 1), ("B", "x", 0), ("B", "y", 1)]
    assert [m.full_name for m in found] == ["A, x", "A, y", "B, x", "B, y"]
    assert names_for_colours(found) == ["A", "B"]


def test_column_tested_on_two_sets_of_images_has_two_headings(tmp_path, make_run):
    made = [make_run(tmp_path / str(n), [[0.5, 0.6]], test_images=np.arange(20) + 20 * n) for n in range(3)]
    found = find_methods([read_run(folder) for folder in made], ["A", "B", "A"], ["x", "x", "y"])
    assert [heading([method], found) for method in found] == [f"x, {described(found[0])}"] * 2 + ["y"]


def test_a_run_of_several_columns_is_one_run(tmp_path, make_run):
    folder = make_run(tmp_path / "run", [[0.5, 0.6]])
    file = write_page([("A", folder)] * 2, tmp_path / "page.html", columns=["x", "y"])
    text = file.read_text(encoding="utf-8")
    assert "dfl_lightning · 1 run, 1 method<" in text
    assert text.count("<th scope='row'>A, x<br>A, y</th>") == 1


def test_thirty_methods_have_distinct_lines():
    """In the table, and by the scales of the charts, whose colours begin again after thirteen; the last is Local's."""
    assert len(LIGHT["category"]) == len(DARK["category"]) == 13
    for names in ([f"m{at}" for at in range(30)], [*(f"m{at}" for at in range(20)), "Local", *"abcdefghi"]):
        places = {name: at for at, name in enumerate(colour_places(names))}
        assert len({key(name, places) for name in names}) == 30
        scale = method_dash(names).to_dict()["scale"]
        lines = dict(zip(scale["domain"], enumerate(map(str, scale["range"])), strict=True))
        assert len({(lines[name][0] % 13, lines[name][1]) for name in names}) == 30
        assert [name for name in names if lines[name][0] % 13 == 12] == ["Local"] * ("Local" in names)


def test_columns_are_headings_and_first_graph_is_of_learning_clients(tmp_path, make_run, make_links, open_page):
    """A server's run and training alone come before it in the list."""
    alone = [(r, i, i, 1.0, False, False) for r in range(2) for i in range(4)]
    links = make_links(np.random.default_rng(0), 2, 4, 2)
    kinds = {
        "server": {"links": [(r, 4, i, 0.25, True, False) for r in range(2) for i in range(4)]},
        "alone": {"links": alone, "received": 0.0, "config": {"selection": {"init_args": {"k": 0}}}},
        "ours": {"links": links},
    }
    named, columns = [], []
    for row, column in (("server", "third"), *((row, column) for column in ("a", "b") for row in ("alone", "ours"))):
        named.append((row, make_run(tmp_path / row / column, np.full((2, 4), 0.5), **kinds[row])))
        columns.append(column)
    file = write_page(named, tmp_path / "page.html", columns=columns, study="A study", command="dfl-study run it")
    seen = open_page(file)
    assert seen.page.locator("h1").inner_text() == seen.page.title() == "A study"
    assert seen.page.locator(".kind").inner_text() == "dfl_lightning · 5 runs, 3 methods"
    assert seen.page.locator("#verdict h3").all_inner_texts() == ["third", "a", "b"]
    keys = "rows => rows.map(row => row.dataset.method + row.querySelector('.key').outerHTML)"
    lines = seen.page.locator("#verdict tr[data-method]").evaluate_all(keys)
    assert len(lines) == 5
    assert len(set(lines)) == 3  # a method has one line in all columns
    assert seen.page.evaluate("window.report.now().run") == 2
    assert seen.page.locator("#run option:checked").inner_text() == "ours, a, seed 0"
    assert seen.page.locator("#how code").first.inner_text() == "dfl-study run it"
    assert seen.console == []


def test_a_study_opens_with_its_own_sentence_table_and_charts(tmp_path, make_run, open_page):
    run = make_run(tmp_path / "run", [[0.5, 0.6], [0.6, 0.7]])

    def opening(methods):
        chart = report.learning_curves(methods)
        return Opening(
            "A & B are best.", Markup("<p id='mine'>B</p>"), [Figure("mine-1", "M", "", chart, "half", "table")]
        )

    seen = open_page(write_page([("A", run)], tmp_path / "page.html", study="S", opening=opening))
    assert seen.page.locator("main > section").first.get_attribute("id") == "table"
    assert seen.page.locator("nav a").first.get_attribute("href") == "#table"
    assert seen.page.locator(".lead").inner_text() == "A & B are best."
    assert seen.page.locator("#mine").is_visible()
    assert seen.page.locator("#table figure svg").count() == 1
    assert seen.page.locator("#verdict .say").all_inner_texts() == ["A ends at 65.0 % test accuracy (one seed)."]
    assert seen.console == []
