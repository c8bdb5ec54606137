"""Cells that a study excludes: not trained, in no mean, and named with their reason in every format."""

import csv
import io
import re
from statistics import mean, stdev

import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import add_seeds
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.grid import grid
from dfl_lightning.bench.study.tables.table import make_table

WHY = "the clock of the machine was reset"
LOCAL = {"row": "Local", "why": WHY}


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([{"row": "Local", "seed": 0}], "exclude: Local: give the reason as why"),
        ([{"row": "Local", "why": " "}], "exclude: Local: give the reason as why"),
        ([{"row": "Locl", "why": WHY}], r"exclude: there is no row 'Locl'; did you mean 'Local'\?"),
        ([{**LOCAL, "column": "IDD"}], r"exclude: Local: there is no column 'IDD'; did you mean 'IID'\?"),
        ([{**LOCAL, "seed": 7}], r"exclude: Local: there is no seed 7 \(seeds: 0, 1, 4\)"),
        ([{**LOCAL, "seed": [0]}], "exclude: Local: seed is one whole number"),
        ([{**LOCAL, "sead": 0}], r"exclude: unknown key 'sead'; did you mean 'seed'\?"),
        ([{"why": WHY}], "names no row"),
        ({"Local": 0}, "exclude is a list such as"),
        ([LOCAL, {"row": "Gossip", "why": WHY}], "exclude: it leaves no cell"),
        ([{**LOCAL, "column": "rotated"}], "no cell Local, rotated, all seeds anyway; remove the entry"),
    ],
)
def test_wrong_entries_are_answered_by_one_sentence(planned, entries, sentence):
    with pytest.raises(UserError, match=sentence) as found:
        planned(seeds=[0, 1, 4], exclude=entries, cells={"Local": {"rotated": None}})
    assert len(str(found.value).splitlines()) == 1


def test_an_added_seed_can_be_excluded(planned, study_of, tmp_path):
    folder = tmp_path / "studies" / "small"
    folder.mkdir(parents=True)
    assert add_seeds(read_study_file(study_of()), folder, 1) == [1]
    assert [key for key in planned(exclude=[{**LOCAL, "seed": 1}]).cells if key[0] == "Local"] == [
        ("Local", "IID", 0),
        ("Local", "rotated", 0),
    ]


def test_excluded_cells_are_in_no_number_and_in_every_caption(planned, pretend):
    values = {"Gossip": [0.80, 0.82, 0.84], "Local": [0.70, 0.10, 0.74]}
    whole = planned(seeds=[0, 1, 2])
    for row, accuracies in values.items():
        for seed, value in enumerate(accuracies):
            pretend(whole.cells[row, "IID", seed], value, tested=seed)
    exclude = [{**LOCAL, "column": "IID", "seed": 1}, {"row": "Gossip", "column": "rotated", "why": "no data"}]
    plan = planned(seeds=[0, 1, 2], exclude=exclude)
    assert len(whole.cells) - len(plan.cells) == 1 + 3
    assert whole.cells["Local", "IID", 1] not in plan.distinct()
    table = make_table(plan)
    kept = [70.0, 74.0]
    assert table.places["Local", "IID"].mean == pytest.approx(mean(kept))
    assert table.places["Local", "IID"].sd == pytest.approx(stdev(kept))
    assert table.rivals["Local", "IID"].difference.mean == pytest.approx(mean([80 - 70, 84 - 74]))
    assert table.places["Gossip", "rotated"].remark == "excluded"
    said = [f"excluded: Local, IID, seed 1: {WHY}", "excluded: Gossip, rotated, all seeds: no data"]
    markdown, latex = formats.markdown(table), formats.latex(table)
    for sentence in said:
        assert f"\n- {sentence}\n" in markdown
        assert f" {sentence}." in latex
        assert sentence in table.notes  # which the picture and the page repeat
    rows = {(line["row"], line["column"]): line for line in csv.DictReader(io.StringIO(formats.as_csv(table)))}
    assert rows["Local", "IID"]["excluded"] == f"seed 1: {WHY}"
    assert rows["Gossip", "rotated"]["excluded"] == "all seeds: no data"
    assert rows["Gossip", "IID"]["excluded"] == ""


def test_the_grid_marks_excluded_cells(planned, pretend):
    plan = planned(seeds=[0, 1, 2], exclude=[{**LOCAL, "seed": 1}])
    pretend(plan.cells["Local", "IID", 2], 0.5)
    lines = list(grid(plan, {key: state_of(cell) for key, cell in plan.cells.items()}, 80))
    assert re.split(r"\s+", lines[2]) == ["Local", "·-✓", "·-·"]
    assert "- excluded" in lines[-1]
