"""The opening of a study's page: its table, and sentences over all columns."""

import re
from html import unescape

import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.study.tables.page import html, opening, sentences
from dfl_lightning.bench.study.tables.table import make_table

BEST = {
    **{("A", "x"): [0.80, 0.81, 0.82], ("B", "x"): [0.70, 0.71, 0.72]},
    **{("A", "y"): [0.5, 0.6, 0.4], ("B", "y"): [0.6, 0.5, 0.5]},
}
ROWS, COLUMNS = {"A": {}, "B": {"selection.k": 1}}, {"x": {}, "y": {"data.samples_per_client": 31}}


@pytest.fixture
def table_of(planned, pretend):
    def table_of(accuracies, rows=ROWS, columns=COLUMNS, **changes):
        plan = planned(seeds=[0, 1, 2], rows=rows, columns=columns, **changes)
        for (row, column), values in accuracies.items():
            for seed, value in enumerate(values):
                pretend(plan.cells[row, column, seed], value, tested=seed)
        return make_table(plan)

    return table_of


CLEAR = {key: values for key, values in BEST.items() if key[1] == "x"} | {
    ("A", "y"): [0.9, 0.9, 0.9],
    ("B", "y"): [0.8, 0.7, 0.75],
}
SPLIT = "A can be told apart from all others in 1 of 2 columns (x); highest mean: A in 1 (x) and B in 1 (y)."
TOLD = "The seeds tell the best row from every other"
NO_VERDICT = "With one seed there is no verdict on any difference."
ONE_SEED = {key: values[:1] for key, values in BEST.items() if key != ("B", "y")}


@pytest.mark.parametrize(
    ("accuracies", "lead", "others"),
    [
        (BEST, SPLIT, ["In y the seeds do not tell A from the best row, B."]),
        (CLEAR, "A can be told apart from all others in both columns.", [f"{TOLD} of its column, in all of them."]),
        (ONE_SEED, "A has the highest mean in x: 80.00 %.", [NO_VERDICT, "9 of 12 cells are not done."]),
        ({("A", "x"): [0.5]}, "No two rows have a number in the same column yet.", ["11 of 12 cells are not done."]),
    ],
)
def test_sentences_are_about_all_columns(table_of, accuracies, lead, others):
    assert list(sentences(table_of(accuracies))) == [lead, *others]


def test_equal_means_are_called_equal_and_not_counted_twice(table_of):
    tied = {**BEST, ("B", "y"): BEST["A", "y"]}
    assert next(sentences(table_of(tied))) == (
        "A can be told apart from all others in 1 of 2 columns (x); highest mean: A in 1 (x) and A and B equal in y."
    )


def test_rows_and_columns_without_a_verdict_are_not_among_all(table_of):
    few = "fewer than two seeds are paired with those of the best row, A"
    begun = {**CLEAR, ("C", "x"): [0.79], ("A", "y"): [0.8], ("B", "y"): [0.7], ("C", "y"): [0.6]}
    assert list(sentences(table_of(begun, rows={**ROWS, "C": {"selection.k": 3}}))) == [
        "No row can be told apart from all others in any of 2 columns; highest mean: A in 2 (x, y).",
        f"In x there is no verdict on C: {few}.",
        f"In y there is no verdict on B and C: {few}.",
        "8 of 18 cells are not done.",
    ]
    three = {**COLUMNS, "z": {"data.samples_per_client": 32}}
    assert list(sentences(table_of(CLEAR, columns=three)))[:2] == [
        "A can be told apart from all others in both compared columns.",
        f"{TOLD} of its column, in all that are compared.",
    ]


def test_row_tested_on_other_samples_is_named_with_reason(table_of, pretend):
    table = table_of(CLEAR)
    for (row, column, _), cell in table.plan.cells.items():
        if (row, column) == ("B", "y"):
            pretend(cell, 0.5, tested=77)
    said = list(sentences(make_table(table.plan)))
    assert "In y there is no verdict on B: tested on other samples than A." in said


def test_distance_from_the_paper_is_not_averaged_over_units(planned, pretend):
    plan = planned(published={"Gossip": {"IID": 40.0, "rotated": 5.0}})
    for (_, column, _), cell in plan.cells.items():
        task = {"name": "Regression", "score": "rmse", "higher_is_better": False}  # of minutes, and of degrees
        pretend(cell, task=task, test_score={"last": {"IID": 43.0, "rotated": 6.0}[column]})
    assert not any("published" in sentence for sentence in sentences(make_table(plan)))
    alone = planned(published={"Gossip": {"rotated": 5.0}})
    assert list(sentences(make_table(alone)))[-1] == "Measured and published numbers are 1.00 apart, mean over 1 place."


def test_the_distance_from_the_paper_is_its_mean(table_of):
    published = {"A": {"x": 80.0}, "B": {"y": [55, 1]}, "C": {"x": 90}}  # measured: 81 and 53.33
    rows = {**ROWS, "C": {"not_in_library": "C"}}
    said = list(sentences(table_of(BEST, rows=rows, published=published)))
    assert said[-1] == "Measured and published numbers are 1.33 points apart, mean over 2 places."


def test_the_table_marks_what_is_best_undecided_and_published(table_of):
    rows = {**ROWS, "C": {"not_in_library": "C & D"}}
    found = opening(table_of(BEST, rows=rows, published={"A": {"x": 80.0}, "C": {"y": 90}}), [])
    assert found.lead == SPLIT
    cells = [re.sub("<[^>]*>", " ", cell).split() for cell in re.findall("<td>(.*?)</td>", found.body)]
    assert [" ".join(cell) for cell in cells] == [
        *("81.00 ± 1.00 ◇ 80.00 (+1.00)", "50.00 ± 10.00 ≈"),
        *("71.00 ± 1.00", "53.33 ± 5.77"),
        *("not in the library", "not in the library ◇ 90.00"),
    ]
    assert re.findall("<b>(.*?)</b>", found.body) == ["81.00", "53.33"]
    assert [figure.title for figure in found.figures] == ["x", "y"]


def test_table_rows_have_the_line_styles_of_charts(table_of):
    rows = {"B": {}, "Local": {"selection.k": 0}, "A": {"selection.k": 1}}
    found = html(table_of({}, rows=rows), list(rows))
    places = colour_places(list(rows))
    assert re.findall(r"stroke='var\(--(m\d+)\)'", found) == [f"m{places.index(name)}" for name in ("B", "Local", "A")]
    assert places[12] == "Local"


def test_hostile_names_of_rows_and_columns_stay_names(table_of):
    hostile = "<script>'\"</script> {{ 7*7 }}"
    rows, columns = {f"{hostile} 1": {}, f"{hostile} 2": {"not_in_library": hostile}}, {f"{hostile} 3": {}}
    table = table_of({(f"{hostile} 1", f"{hostile} 3"): [0.5]}, rows=rows, columns=columns)
    found = opening(table, []).body + html(table, list(rows))
    assert "<script" not in found
    heads = [unescape(re.sub("<[^>]*>", "", head)) for head in re.findall("<th scope='(?:row|col)'>(.*?)</th>", found)]
    assert heads == 2 * ["method", f"{hostile} 3", f"{hostile} 1", f"{hostile} 2"]
    assert {unescape(name) for name in re.findall('data-single="(.*?)"', found)} == set(rows)
