"""A table of any number that a run has: read from real runs, with the lowest row as the best where that is better."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.stats.common_seeds import over_common_seeds
from dfl_lightning.bench.stats.statistics import over_columns
from dfl_lightning.bench.study import command
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.file.validation_settings import said_by
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.measures.measure import Measure, measure_of, read_measure
from dfl_lightning.bench.study.tables.table import make_table
from dfl_lightning.utils.score import Score

RUN_FOLDER = (Path(__file__).parents[3] / "docs" / "run_folder.md").read_text(encoding="utf-8")
RUN = "round,test_acc,test_acc_var,bytes_received\n0,,,100\n1,0.5,0.02,150\n2,,,150\n3,0.7,nan,100\n4,0.8,0.01,100\n"


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (Measure("test_acc_var", "last"), 0.01),
        (Measure("test_acc_var", "mean"), None),  # of other rounds alone it would look better
        (Measure("test_acc", "mean"), 200 / 3),
        (Measure("bytes_received", "sum"), 600.0),
        (Measure("test_acc", "last"), 80.0),
        (Measure("nowhere", "last"), None),
    ],
)
def test_rounds_become_one_number(tmp_path, measure, expected):
    (tmp_path / "metrics.csv").write_text(RUN)
    assert measure.of({}, tmp_path) == (None if expected is None else pytest.approx(expected, rel=1e-12))
    assert measure.of({}, None) is None


def test_an_accuracy_is_the_summarys_in_percent(tmp_path):
    assert Measure("last").of({"test_accuracy": {"acc_last": 0.75}}, tmp_path) == 75.0
    assert Measure("best_val").of({"test_accuracy": {"acc_last": 0.75}}, tmp_path) is None


RMSE = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}


def test_each_column_has_its_tasks_unit_and_direction(planned, pretend):
    plan = planned(seeds=[0, 1])
    numbers = {("Gossip", "IID"): 0.8, ("Local", "IID"): 0.7, ("Gossip", "rotated"): 41.234, ("Local", "rotated"): 52.0}
    for (row, column, seed), cell in plan.cells.items():
        value = numbers[row, column] + 0.01 * seed
        if column == "IID":
            pretend(cell, value)
        else:
            pretend(cell, task=RMSE, test_score={"last": value})
    table = make_table(plan)
    assert table.best == {"IID": "Gossip", "rotated": "Gossip"}
    text = formats.markdown(table)
    assert "| Gossip | **80.50 ± 0.71** | **41.2 ± < 0.1** |" in text
    assert (
        "IID: acc_last: test accuracy of the last evaluated round, mean over clients, in percent. rotated: last: "
        in text
    )
    assert "test RMSE of the last evaluated round, mean over clients; the lowest is the best; mean ± standard" in text
    assert [drawn.axis for drawn in table.measures.values()] == ["%", "RMSE"]
    named = {line["column"]: line["measure"] for line in csv.DictReader(io.StringIO(formats.as_csv(table)))}
    assert named == {"IID": "acc_last", "rotated": "last"}
    wrong = plan.cells["Local", "IID", 0]  # a run of another task than the column's first
    pretend(wrong, task=RMSE, test_score={"last": 1.0})
    assert make_table(plan).places["Local", "IID"].values == {1: pytest.approx(71.0)}


def test_differences_in_several_units_are_not_ranked():
    from dfl_lightning.bench.study.tables.table import _overall

    columns = [str(number) for number in range(5)]
    values = {c: {"A": {0: 3.0 + at}, "B": {0: 2.0}, "C": {0: 1.0}} for at, c in enumerate(columns)}
    plan = SimpleNamespace(study=SimpleNamespace(rows={"A": {}, "B": {}, "C": {}}))
    rmse = {c: Measure("last").of_task(Score.read({"task": RMSE})) for c in columns}
    mixed = {**rmse, "0": Measure("last")}
    values["0"] = {row: {0: -number[0]} for row, number in values["0"].items()}
    for measures, against in ((rmse, {"A", "B"}), (mixed, set())):
        compared = {c: over_common_seeds(values[c], m.lower_is_better) for c, m in measures.items()}
        found = _overall(plan, compared, measures)
        assert set(found.against_best) == against
    assert found.ranks == {"A": 3.0, "B": 2.0, "C": 1.0}


def test_score_column_has_its_direction_unless_the_study_overrides():
    rmse = Score.read({"task": RMSE})
    assert read_measure({"number": "val_rmse"}, "").of_task(rmse).lower_is_better
    assert not read_measure({"number": {"column": "val_rmse", "better": "higher"}}, "").of_task(rmse).lower_is_better
    assert not read_measure({"number": "bytes_received"}, "").of_task(rmse).lower_is_better


def test_lowest_value_is_best_if_lower_is_better():
    values = {"A": {0: 0.3, 1: 0.1}, "B": {0: 0.1, 1: 0.1}, "C": {0: 0.2, 1: 0.3}}
    assert over_common_seeds(values).best == "C"
    assert over_common_seeds(values, lower_is_better=True).best == "B"
    means = {"A": [3.0, 3.0, 3.0, 3.0, 3.0], "B": [1.0, 1.0, 1.0, 1.0, 1.0]}
    assert over_columns(means).ranks == {"A": 1.0, "B": 2.0}
    assert over_columns(means, lower_is_better=True).ranks == {"A": 2.0, "B": 1.0}


def test_a_table_of_a_column(study_of, in_this_process, capsys, tmp_path):
    file = study_of(
        seeds=[0, 1],
        base={"config": "gossip", "trainer.max_rounds": 2, "data.num_clients": 4},
        rows={"Gossip": {"selection.k": 1}, "Local": {"selection.k": 0}},
        columns={"IID": {}},
        score=None,
        number={"column": "bytes_received", "over_rounds": "sum", "better": "lower"},
    )
    with in_this_process():
        assert command.main(["run", str(file)]) == 0
    said = capsys.readouterr().out
    plan = make_plan(read_study_file(file), tmp_path / "studies" / "small", 1.0)
    table = make_table(plan)
    assert table.best == {"IID": "Local"}
    for seed in (0, 1):
        [metrics] = plan.cells["Gossip", "IID", seed].folder.glob("run/*/metrics.csv")
        sent = [float(row["bytes_received"]) for row in csv.DictReader(metrics.read_text().splitlines())]
        assert table.places["Gossip", "IID"].values[seed] == np.sum(sent) > 0
        assert f"Gossip, IID, seed {seed}: done, {np.sum(sent):.0f} ·" in said
    text = formats.markdown(table)
    assert "- bytes_received: column of metrics.csv, sum over the rounds; the lowest is the best; mean ±" in text
    assert "%" not in text.split("Paired differences")[0]
    assert (
        command.main(["table", str(file), "--number", "neighbours", "--over-rounds", "mean", "--better", "lower"]) == 0
    )
    said = capsys.readouterr().out
    assert "- neighbours: column of metrics.csv, mean over the rounds that have it; the lowest is the best" in said
    assert "| Gossip | 1.00 ± 0 ≈ |" in said  # two seeds
    [first, *_] = csv.DictReader(io.StringIO(formats.as_csv(table)))
    assert first["measure"] == "bytes_received"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"way": "last", "column": "x"}, "--score or --number, not both"),
        ({"way": None, "column": None, "better": "lower"}, "name one with --number"),
        ({"way": "lst", "column": None}, "--score: there is no 'lst'; did you mean 'last'"),
    ],
)
def test_options_that_do_not_fit_are_answered_by_a_sentence(words, sentence):
    with pytest.raises(UserError, match=sentence):
        measure_of(**words)
    assert measure_of(None, None) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"score": "lst"}, "there is no 'lst'; did you mean 'last'"),
        ({"score": ["last"]}, r"score: there is no '\['last'\]'"),
        ({"score": "last", "number": "x"}, "a table compares score or number, not both"),
        ({"number": 3}, "number needs a column of metrics.csv"),
        ({"number": {"over_rounds": "last"}}, "number needs a column of metrics.csv"),
        ({"number": {"column": "x", "bettr": "lower"}}, "number: unknown key 'bettr'; did you mean 'better'"),
        ({"number": {"column": "x", "better": "small"}}, "number.better: 'small' is not one of higher, lower"),
        ({"number": {"column": "x", "over_rounds": "max"}}, "'max' is not one of last, mean, sum, best_val"),
    ],
)
def test_a_mistake_is_answered_by_a_sentence(content, sentence):
    with pytest.raises(UserError, match=sentence):
        read_measure(content, "mine.yaml")
    assert read_measure({"number": "test_acc_var"}, "mine.yaml") == Measure("test_acc_var", "last", by_task=True)


@pytest.mark.parametrize("words", [["run"], ["run", "--explain"]])
def test_unlogged_number_is_refused_before_the_first_cell(words, study_of, in_this_process, capsys):
    file = study_of(score=None, number="neighbour_precison", columns={"IID": {}, "rotated": ROTATED})
    with in_this_process():
        assert command.main([words[0], str(file), *words[1:]]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert "Gossip, IID: number: no policy or monitor of this run logs 'neighbour_precison'" in said
        assert "it has train_loss, neighbours, " in said
        assert "neighbour_precision" not in said  # without clusters
        assert not [*file.parent.glob("studies/**/metrics.csv")]
        file = study_of(score=None, number="neighbour_precison", columns={"rotated": ROTATED})
        assert command.main([words[0], str(file), *words[1:]]) == 2
    assert "did you mean 'neighbour_precision'" in capsys.readouterr().err


def test_unlogged_published_number_is_refused_before_the_first_cell(study_of, in_this_process, capsys):
    numbers = {"neighbour_recal": {"Local": {"IID": 50}}, "neighbours": {"Gossip": {"IID": 2}}}
    file = study_of(columns={"IID": {}}, published_numbers=numbers)
    with in_this_process():
        assert command.main(["run", str(file), "--explain"]) == 2
    assert "Local, IID: number: no policy or monitor of this run logs 'neighbour_recal'" in capsys.readouterr().err


ROTATED = {"data": {"partition": {"class_path": "RotatedClusters", "init_args": {"degrees": [0, 90]}}}}


def test_without_a_score_the_last_round_or_validation_decides(planned, pretend):
    """The best round on test data is compared only where a study asks for it, and its caption says so."""
    assert planned(score=None).study.measure.key == "last"
    base = {"config": "gossip", "trainer.max_rounds": 2, "data.val_fraction": 0.2}
    assert planned(score=None, base=base).study.measure.key == "best_val"
    assert planned(base=base).study.measure.key == "last"  # the file names it
    one = {"Local": {"rotated": {"data.val_fraction": 0.0}}}
    assert planned(score=None, base=base, cells=one).study.measure.key == "last"
    assert "chosen on the test data" in make_table(planned(score="best_round")).about
    assert "chosen on the test data" not in make_table(planned()).about


@pytest.mark.parametrize(
    ("validation", "key"),
    [((4, 4, 4, 4), "best_val"), ((4, 4, 0, 4), "last"), ((4, None, 4, 4), "best_val"), ((0, 0, 0, 0), "last")],
)
def test_data_without_the_option_are_asked_for_their_validation_samples(planned, pretend, validation, key):
    """A class of data may keep validation data without `val_fraction`, and a split file may have some."""
    plan = planned(score=None)
    own = {"class_path": "mine.Data", "init_args": {"num_clients": 6}}
    cells = {name: replace(cell, config={**cell.config, "data": own}) for name, cell in plan.cells.items()}
    plan = replace(plan, cells=cells)
    for cell, samples in zip(cells.values(), validation, strict=True):
        if samples is not None:  # else the cell waits
            run = pretend(cell, test_accuracy={"acc_last": 0.5, "acc_best_val": 0.75})
            np.savez(run / "split.npz", val_offsets=np.array([0, samples]))
    table = make_table(plan)
    assert table.measure.key == key
    assert table.places["Gossip", "IID"].mean == {"best_val": 75.0, "last": 50.0}[key]


def test_a_split_file_decides_on_validation_data_not_the_option():
    arguments = {"split": "runs/1/split.npz", "val_fraction": 0.0}
    assert said_by({"data": {"class_path": "Digits", "init_args": arguments}}) is None
    assert said_by({"data": {"class_path": "Digits", "init_args": {**arguments, "split": None}}}) is False


@pytest.mark.parametrize(
    ("column", "rmse", "text"),
    [
        ("test_acc", False, "70.00"),
        ("test_acc_std", False, "70.00"),
        ("test_acc_worst10", False, "70.00"),
        ("neighbour_precision", False, "70.00"),
        ("test_macro_f1", True, "70.00"),
        ("test_acc_variance", False, "0.700"),
        ("test_loss", False, "0.700"),
        ("test_rmse", True, "0.700"),
        ("neighbours", False, "0.700"),
    ],
)
def test_shares_are_shown_in_percent(tmp_path, column, rmse, text):
    (tmp_path / "metrics.csv").write_text(f"round,{column}\n0,0.7\n")
    measure = read_measure({"number": column}, "").of_task(Score.read({"task": RMSE} if rmse else {}))
    value = measure.of({}, tmp_path)
    assert measure.text(value) == text
    assert value == pytest.approx(70.0 if text == "70.00" else 0.7)
    assert (measure.unit, "in percent" in measure.about) == ((" %", True) if text == "70.00" else ("", False))


def test_columns_documented_as_shares_are_in_percent():
    rows = re.findall(r"^\| (`.*`) \| (.*(?:0 to 1|share of the dropped).*) \|$", RUN_FOLDER, re.MULTILINE)
    shares = {name for names, _ in rows for name in re.findall(r"`(\w+)`", names) if not name.endswith("_loss")}
    assert {"malicious_neighbours", "matched_recall", "friend_accuracy", "test_acc"} <= shares
    assert {name for name in shares if not Measure(name, "last").is_percent} == set()
    assert not Measure("neighbours", "last").is_percent
