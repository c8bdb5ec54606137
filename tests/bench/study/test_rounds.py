"""The numbers of each evaluated round as CSV, of runs whose metrics are made up, and of real ones."""

import csv
import io
import json

import pytest

from dfl_lightning.bench.study import command

METRICS = {
    "Gossip": "round,test_acc,global_test_acc,seconds,matched\n0,,,1.5,3\n1,0.25,,1.5,\n2,,,1.5,4\n3,0.5,,1.5,\n",
    "Local": "round,test_acc,seconds\n0,,0.5\n1,0.125,0.5\n2,,0.5\n3,0.375,0.5\n",
}


@pytest.fixture
def made_up(planned, pretend):
    plan = planned(columns={"IID": {}})
    for (row, _, _), cell in plan.cells.items():
        (pretend(cell, 0.5) / "metrics.csv").write_text(METRICS[row])
    return plan


def test_each_evaluated_round_has_a_line(made_up, capsys):
    assert command.main(["rounds", "small.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "row,column,seed,round,test_acc",  # no cell has the accuracy of a server
        *("Gossip,IID,0,1,0.25", "Gossip,IID,0,3,0.5", "Local,IID,0,1,0.125", "Local,IID,0,3,0.375"),
    ]
    assert not printed.err


def test_chosen_numbers_have_their_own_rounds(made_up, tmp_path):
    words = ["--number", "matched", "--number", "test_acc", "--out", "rounds.csv"]
    assert command.main(["rounds", "small.yaml", *words]) == 0
    assert (tmp_path / "rounds.csv").read_text().splitlines() == [
        "row,column,seed,round,matched,test_acc",
        *("Gossip,IID,0,0,3,", "Gossip,IID,0,1,,0.25", "Gossip,IID,0,2,4,", "Gossip,IID,0,3,,0.5"),
        *("Local,IID,0,1,,0.125", "Local,IID,0,3,,0.375"),
    ]


def test_unknown_number_is_refused_with_the_nearest(made_up, capsys):
    assert command.main(["rounds", "small.yaml", "--number", "matchd"]) == 2
    assert "no cell that is done logs 'matchd'; did you mean 'matched'?" in capsys.readouterr().err


def test_cells_that_are_not_done_have_no_lines(planned, pretend, capsys):
    plan = planned(columns={"IID": {}})
    assert command.main(["rounds", "small.yaml"]) == 2
    assert "no cell is done yet; train them with: dfl-study run small.yaml" in capsys.readouterr().err
    (pretend(plan.cells["Local", "IID", 0], 0.5) / "metrics.csv").write_text(METRICS["Local"])
    assert command.main(["rounds", "small.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "1 of 2 cells are done; the others have no lines\n"
    assert [line.split(",")[0] for line in printed.out.splitlines()] == ["row", "Local", "Local"]


def test_last_rounds_have_the_scores_of_the_summaries(planned, in_this_process, capsys):
    plan = planned(columns={"IID": {}}, seeds=[0, 1])
    with in_this_process():
        assert command.main(["run", "small.yaml"]) == 0
    capsys.readouterr()
    assert command.main(["rounds", "small.yaml"]) == 0
    last = {
        (line["row"], line["column"], int(line["seed"])): float(line["test_acc"])
        for line in csv.DictReader(io.StringIO(capsys.readouterr().out))
    }
    for place, cell in plan.cells.items():
        [summary] = cell.folder.glob("run/*/summary.json")
        assert last.pop(place) == json.loads(summary.read_text())["test_accuracy"]["acc_last"]
    assert not last
