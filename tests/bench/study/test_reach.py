"""Rounds and bytes until a value is reached: never a mean over other seeds than it seems."""

import csv
import io
from statistics import mean, stdev

import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.study import command
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.measures.measure import measure_of
from dfl_lightning.bench.study.tables.measures.reach import read_reach
from dfl_lightning.bench.study.tables.table import make_table

RMSE = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
# Accuracy after each round, None where a round is not evaluated. The value 0.57 is 56.99999999999999 in percent.
CURVES = {
    ("Gossip", 0): [0.3, 0.57, 0.5, 0.6],
    ("Gossip", 1): [0.3, None, None, 0.6],
    ("Local", 0): [0.57, 0.6, 0.6, 0.6],
    ("Local", 1): [0.1, 0.2, 0.3, 0.56],
    ("Never", 0): [0.1, 0.1, 0.1, 0.1],
    ("Never", 1): [0.1, 0.1, 0.1, 0.1],
}


@pytest.fixture
def curves(planned, pretend):
    """Write a study whose runs have these scores in each round, and receive 1000 bytes in each."""

    def curves(of_runs, score="acc", **summary):
        rows = {row: {"selection.k": at} for at, row in enumerate(dict.fromkeys(row for row, _ in of_runs))}
        plan = planned(rows=rows, columns={"IID": {}}, seeds=sorted({seed for _, seed in of_runs}))
        for (row, seed), values in of_runs.items():
            run = pretend(plan.cells[row, "IID", seed], values[-1], tested=seed, **summary)
            lines = [f"{n},{'' if value is None else value},1000" for n, value in enumerate(values)]
            (run / "metrics.csv").write_text("\n".join([f"round,test_{score},bytes_received", *lines, ""]))
        return plan

    return curves


def test_rounds_until_a_value_average_seeds_that_reach_it(curves):
    table = make_table(curves(CURVES), read_reach(57.0))
    gossip, local, never = (table.places[row, "IID"] for row in table.rows)
    assert gossip.values == {0: 2.0, 1: 4.0}
    assert (gossip.mean, gossip.sd) == (mean([2, 4]), stdev([2, 4]))
    assert gossip.bytes == {0: 2000.0, 1: 4000.0}
    assert local.values == {0: 1.0}
    assert (never.values, never.remark) == ({}, "not reached")
    text = formats.markdown(table)
    assert "| Gossip | **3.00 ± 1.41, 3.0 kB** |" in text
    assert "| Local | 1.00, 1.0 kB (1 of 2 seeds) |" in text  # its mean would be the best
    assert "| Never | not reached |" in text
    assert table.best == {"IID": "Gossip"}
    assert not table.rivals
    assert "- not compared with other rows, for a mean over the seeds that reached it leaves out the slowest: " in text
    assert "Local in IID (1 of 2 seeds)\n" in text
    assert "is at or above 57 % in an evaluated round for the first time" in text
    lines = {line["row"]: line for line in csv.DictReader(io.StringIO(formats.as_csv(table)))}
    fields = ("n", "done", "mean", "bytes_until", "remark")
    assert [lines["Local"][name] for name in fields] == ["1", "2", "1.0", "1000.0", ""]
    assert [lines["Never"][name] for name in fields] == ["0", "2", "", "", "not reached"]


def test_an_error_is_reached_from_above(curves):
    plan = curves({("A", 0): [9.0, 3.0, 2.0, 5.0], ("B", 0): [2.0, 3.0, 3.0, 3.0]}, "rmse", task=RMSE)
    table = make_table(plan, read_reach(2.5))
    assert [table.places[row, "IID"].values for row in table.rows] == [{0: 3.0}, {0: 1.0}]
    assert table.best == {"IID": "B"}
    assert "test RMSE, mean over clients, is at or below 2.5 in" in table.about


@pytest.mark.parametrize(("value", "sentence"), [(0.9, "from 1 to 100; for 90 % give 90"), (101.0, "from 1 to 100")])
def test_impossible_accuracy_is_refused(curves, value, sentence):
    with pytest.raises(UserError, match=sentence):
        make_table(curves({("A", 0): [0.5]}), read_reach(value))


def test_columns_of_several_scores_have_no_value_in_common(planned, pretend):
    plan = planned()
    pretend(plan.cells["Gossip", "IID", 0], 0.5)
    pretend(plan.cells["Gossip", "rotated", 0], task=RMSE, test_score={"last": 3.0})
    with pytest.raises(UserError, match=r"several scores \(IID: accuracy, rotated: RMSE\)"):
        make_table(plan, read_reach(50.0))


def test_the_option_stands_alone_and_is_finite(curves, capsys):
    with pytest.raises(UserError, match="--score or --reach, not both"):
        measure_of("last", None, reach=read_reach(3.0))
    with pytest.raises(UserError, match="--reach nan: give a finite value"):
        read_reach(float("nan"))
    plan = curves(CURVES)
    assert command.main(["table", str(plan.study.path), "--reach", "57", "--format", "latex"]) == 0
    assert r"Local & 1.00, 1.0 kB (1 of 2 seeds) & 1.0 kB \\" in capsys.readouterr().out
