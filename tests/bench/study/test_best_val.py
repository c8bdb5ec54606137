"""Numbers at the best validation score, by hand: each client's best round, or the round of the best mean."""

import math

import numpy as np
import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.study import command
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.measures.measure import measure_of, read_measure
from dfl_lightning.bench.study.tables.table import make_table
from dfl_lightning.utils.score import Score

RMSE = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
# Rows are evaluations, after rounds 1, 3 and 4; columns are clients. The highest validation of client 0 is in the
# second evaluation, that of client 1 in the first two, of which the second counts, that of client 2 in the last two.
VALIDATION = [[0.5, 0.9, 0.2], [0.7, 0.9, 0.3], [0.6, 0.1, 0.3]]
TEST = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]


def leave(run, score="acc", validation=VALIDATION, test=TEST, loss=None):
    """Leave the tables of a run with these scores, and 5, 3 and 2 neighbours in its evaluated rounds."""
    of_val = {} if validation is None else {f"val_{score}": np.array(validation)}
    losses = np.ones((3, 3)) if loss is None else np.array(loss)
    np.savez(run / "clients.npz", rounds=np.array([1, 3, 4]), test_loss=losses, **{f"test_{score}": test}, **of_val)
    means = ["", "", ""] if validation is None else [sum(row) / 3 for row in validation]
    lines = [f"0,,,9\n1,{means[0]},0.2,5\n2,,,9\n3,{means[1]},0.5,3\n4,{means[2]},0.8,2\n"]
    (run / "metrics.csv").write_text("".join([f"round,val_{score},test_{score},neighbours\n", *lines]))


def at_best(column, run, task=None, **summary):
    measure = measure_of(None, column, "best_val")
    measure = measure.of_task(Score.read({"task": task} if task else {}))
    return measure.of({**summary, **({"task": task} if task else {})}, run)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("test_acc", 100 * 0.6),  # of 0.4, 0.5 and 0.9
        ("test_acc_std", 100 * math.sqrt((0.2**2 + 0.1**2 + 0.3**2) / 3)),
        ("test_acc_variance", (0.2**2 + 0.1**2 + 0.3**2) / 3),
        ("test_acc_worst10", 40.0),
        ("test_acc_best10", 90.0),
        ("val_acc", 100 * (0.7 + 0.9 + 0.3) / 3),
        ("test_loss", 1.0),
        ("neighbours", 3.0),  # 0.63 is the highest mean of validation
        ("test_auroc_std", None),
        ("nowhere", None),
    ],
)
def test_each_client_counts_in_its_best_round(tmp_path, column, expected):
    leave(tmp_path)
    assert at_best(column, tmp_path) == (None if expected is None else pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("test_rmse", 0.4),  # of 0.1, 0.8 and 0.3
        ("test_rmse_worst10", 0.8),
        ("test_rmse_best10", 0.1),
        ("neighbours", 2.0),
    ],
)
def test_errors_are_best_where_lowest(tmp_path, column, expected):
    leave(tmp_path, "rmse")
    assert at_best(column, tmp_path, RMSE) == pytest.approx(expected, rel=1e-12)


def test_adversaries_are_left_out(tmp_path):
    leave(tmp_path)
    attack = {"attack": {"by": ["SignFlip"], "clients": [2]}}
    assert at_best("test_acc_std", tmp_path, **attack) == pytest.approx(5.0)
    assert at_best("test_acc_adversaries", tmp_path, **attack) == pytest.approx(90.0)


def test_a_broken_model_makes_the_number_not_finite(tmp_path):
    test, loss = [list(row) for row in TEST], [[1.0] * 3 for _ in range(3)]
    test[1][0], loss[1][0] = math.nan, math.inf  # at its best validation client 0 has no accuracy
    leave(tmp_path, test=test, loss=loss)
    measure = measure_of(None, "test_acc_std", "best_val")
    assert measure.of({}, tmp_path) is None
    assert measure.is_not_finite({}, tmp_path)


def test_clients_without_test_data_are_left_out(tmp_path):
    test = [[math.nan, *row[1:]] for row in TEST]
    leave(tmp_path, test=test, loss=[[math.nan, 1.0, 1.0]] * 3)
    assert at_best("test_acc", tmp_path) == pytest.approx(70.0)


def test_without_validation_data_there_is_no_number(tmp_path):
    leave(tmp_path, validation=None)
    assert [at_best(name, tmp_path) for name in ("test_acc_std", "neighbours")] == [None, None]
    measure = read_measure({"number": {"column": "test_acc_std", "over_rounds": "best_val"}}, "mine.yaml")
    measure.check(["val_loss", "test_acc_std"])
    with pytest.raises(UserError, match=r"best_val chooses rounds on validation data, and this run has none; set data"):
        measure.check(["test_acc_std"])


def test_captions_say_whose_best_round(planned, pretend):
    plan = planned(columns={"IID": {}})
    for at, cell in enumerate(plan.cells.values()):
        leave(pretend(cell, 0.5, tested=0), test=np.array(TEST) / (1 + at))
    table = make_table(plan, measure_of(None, "test_acc_std", "best_val", "lower"))
    text = formats.markdown(table)
    assert (
        "test_acc_std: column of metrics.csv, over clients, each in its best round on validation data, in percent; "
        "the lowest is the best" in text
    )
    assert "| Local | **10.80** |" in text
    text = formats.markdown(make_table(plan, measure_of(None, "neighbours", "best_val")))
    assert "neighbours: column of metrics.csv, in the round with the best mean validation score" in text


def test_means_of_real_runs_are_their_best_val(study_of, in_this_process, capsys, tmp_path):
    base = {"config": "gossip", "trainer.max_rounds": 4, "data.num_clients": 4, "data.val_fraction": 0.2}
    file = study_of(base=base, columns={"IID": {}}, seeds=[0], score="best_val")
    with in_this_process():
        assert command.main(["run", str(file)]) == 0
    found = []
    for options in (["--score", "best_val"], ["--number", "test_acc", "--over-rounds", "best_val"]):
        capsys.readouterr()
        assert command.main(["table", str(file), *options, "--format", "csv"]) == 0
        lines = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
        found.append([float(line[5]) for line in lines])
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert len(found[0]) == 2
