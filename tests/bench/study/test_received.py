"""Messages that a client of each row receives: in every format, by default, from the run folders."""

import csv
import io
from statistics import mean

import pytest

from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.received import HEADING, RoundTraffic, in_words
from dfl_lightning.bench.study.tables.table import make_table

# Models and kilobytes by round, for each seed.
TRAFFIC = {
    ("Gossip", "IID"): [[(5, 13), (5, 13)], [(5, 13), (5, 13)]],
    ("Gossip", "rotated"): [[(20, 52), (10, 26)], [(30, 78), (20, 52)]],
    ("Local", "IID"): [[(0, 0), (0, 0)], [(0, 0), (0, 0)]],
}


@pytest.fixture
def received(planned, pretend):
    """Make a table of runs with the given traffic in each round; that of the cell Local, rotated is not known."""

    def received(traffic):
        plan = planned(seeds=[0, 1])
        for key, cell in plan.cells.items():
            run = pretend(cell, 0.5, tested=cell.seed)
            if key[:2] in traffic:
                rounds = enumerate(traffic[key[:2]][key[2]])
                lines = [f"{n},{models},{1000 * kilobytes}" for n, (models, kilobytes) in rounds]
                (run / "metrics.csv").write_text("\n".join(["round,models_received,bytes_received", *lines, ""]))
        return make_table(plan)

    return received


def test_every_format_says_what_a_client_receives(received):
    table = received(TRAFFIC)
    said = {"Gossip": "5 to 20 models, 13.0 to 52.0 kB", "Local": "0 models, 0 B"}
    assert table.further == {HEADING: said}
    markdown, latex = formats.markdown(table), formats.latex(table)
    assert f"|  | IID | rotated | {HEADING} |\n| --- | --- | --- | --- |\n" in markdown
    for row, words in said.items():
        (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {row} |")]
        assert line.endswith(f" | {words} |")
        (line,) = [line for line in latex.splitlines() if line.startswith(f"{row} &")]
        assert line.endswith(rf" & {words} \\")
    assert rf" & IID & rotated & {HEADING} \\" in latex
    assert r"\begin{tabular}{lrrl}" in latex
    assert any(note.startswith("received: models") for note in table.notes)


def test_the_csv_has_the_numbers_of_each_place(received):
    rows = {(row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(formats.as_csv(received(TRAFFIC))))}
    for place, by_seed in TRAFFIC.items():
        models, kilobytes = (mean(mean(pair[at] for pair in rounds) for rounds in by_seed) for at in (0, 1))
        assert float(rows[place]["models_received"]) == pytest.approx(models)
        assert float(rows[place]["bytes_received"]) == pytest.approx(1000 * kilobytes)
    unknown = rows["Local", "rotated"]
    assert (unknown["n"], unknown["models_received"], unknown["bytes_received"]) == ("2", "", "")


def test_seeds_have_equal_weight_despite_more_rounds(received):
    traffic = {("Gossip", "IID"): [[(1, 1)], [(4, 1), (6, 1), (8, 1)]]}
    assert received(traffic).received["Gossip", "IID"].models == mean([1, 6])


def test_table_without_received_counts_has_no_such_column(received):
    table = received({})
    assert table.further == {}
    assert HEADING not in formats.markdown(table) + formats.latex(table)
    assert not any(note.startswith("received: ") for note in table.notes)


def test_unknown_row_is_empty(received):
    table = received({key: traffic for key, traffic in TRAFFIC.items() if key[0] == "Gossip"})
    assert table.further[HEADING]["Local"] == ""
    (line,) = [line for line in formats.markdown(table).splitlines() if line.startswith("| Local |")]
    assert line.endswith(" |  |")


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([(5.0, 13e3)], "5 models, 13.0 kB"),
        ([(1.0, 900.0)], "1 model, 900 B"),
        ([(1.0, 900.0), (1.0, 1500.0)], "1 model, 900 B to 1.5 kB"),
        ([(4.9583, 2.1e6), (5.04, 2.1e6)], "5 models, 2.1 MB"),
        ([(0.2, 1e3), (1234.5, 1e3)], "0.2 to 1,234.5 models, 1.0 kB"),
        ([(None, 40.0)], "40 B"),
        ([(None, None)], ""),
    ],
)
def test_received_numbers_are_formatted_with_units(places, words):
    assert in_words(RoundTraffic(*place) for place in places) == words


def test_picture_and_page_have_the_column(received):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.study.tables.page import html
    from dfl_lightning.bench.study.tables.picture import whole

    table = received(TRAFFIC)
    spec = whole(table).to_dict()
    panels = [panel for line in spec["vconcat"][0]["vconcat"] for panel in line["hconcat"]]
    assert " ".join(panels[-1]["title"]["text"]) == HEADING
    assert spec["datasets"][panels[-1]["data"]["name"]] == [
        {"row": "Gossip", "said": "5 to 20 models, 13.0 to 52.0 kB"},
        {"row": "Local", "said": "0 models, 0 B"},
    ]
    page = html(table, ["Gossip", "Local"])
    assert f"<th scope='col'>{HEADING}</th></tr></thead>" in page
    assert "<td>5 to 20 models, 13.0 to 52.0 kB</td></tr>" in page
