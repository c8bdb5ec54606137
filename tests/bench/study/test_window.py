"""A column of metrics.csv in a part of the rounds, against means that numpy takes."""

import numpy as np
import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.study import command
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.measures.window import in_window
from dfl_lightning.bench.study.tables.table import make_table

VALUES = [None, 0.5, None, 0.7, 0.8, 0.9]  # accuracy after each round; None: not evaluated
RUN = "".join(f"{n},{'' if v is None else v},{10 * n}\n" for n, v in enumerate(VALUES))


def windowed(column, after, until, over_rounds=None):
    return in_window(Measure(column, over_rounds or "last"), after, until, over_rounds)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (windowed("test_acc", 3, None), 100 * np.mean([0.8, 0.9])),
        (windowed("test_acc", None, 3), 100 * np.mean([0.5, 0.7])),
        (windowed("test_acc", 1, 4), 100 * np.mean([0.7, 0.8])),
        (windowed("test_acc", 1, 4, "last"), 80.0),
        (windowed("test_acc", 1, 2), None),  # no evaluated round
        (windowed("test_acc", None, 0), None),
        (windowed("bytes_received", 1, 4, "sum"), 20.0 + 30 + 40),
        (windowed("bytes_received", 4, 99), 50.0),
    ],
)
def test_only_rounds_of_the_window_count(tmp_path, measure, expected):
    (tmp_path / "metrics.csv").write_text(f"round,test_acc,bytes_received\n{RUN}")
    assert measure.of({}, tmp_path) == (None if expected is None else pytest.approx(expected, rel=1e-12))
    assert measure.of({}, None) is None


def test_caption_and_name_say_the_window():
    assert windowed("test_acc", 15, None).name == "test_acc, rounds 16 and later"
    about = windowed("test_acc", None, 39).about
    assert about == (
        "column of metrics.csv, mean over the rounds that have it, in percent; rounds 0 to 39 of metrics.csv, which "
        "counts from 0"
    )


def test_a_window_is_another_number_than_the_column():
    one = windowed("test_acc", 1, 4, "last")
    assert one.is_like(windowed("test_acc", 1, 4, "last"))
    assert not one.is_like(windowed("test_acc", 1, 5, "last"))
    assert not one.is_like(Measure("test_acc", "last"))


def test_one_round_of_all_is_refused_in_a_window():
    with pytest.raises(UserError, match="best_val takes one round of all; drop it, or --after and --until"):
        in_window(Measure("test_acc", "last"), 3, None, "best_val")


@pytest.mark.parametrize(
    ("measure", "after", "until", "sentence"),
    [
        (None, 3, None, "choose rounds of a column; name one, for example --number test_acc"),
        (Measure("last"), None, 3, "choose rounds of a column"),
        (Measure("test_acc", "last"), -1, None, "--after -1: it is a round of metrics.csv, 0 or more"),
        (
            Measure("test_acc", "last"),
            5,
            5,
            "--after 5 --until 5: there is no round after 5 and up to 5; give --until 6 or more",
        ),
    ],
)
def test_a_wrong_window_is_refused(measure, after, until, sentence):
    with pytest.raises(UserError, match=sentence):
        in_window(measure, after, until, None)


def test_the_command_compares_rows_in_a_window(planned, pretend, capsys):
    plan = planned(seeds=[0, 1], columns={"IID": {}})
    early = {"Gossip": [0.1, 0.2, 0.9, 0.9], "Local": [0.3, 0.4, 0.5, 0.6]}
    for (row, _, seed), cell in plan.cells.items():
        run = pretend(cell, 0.9, tested=seed)
        lines = [f"{n},{value + seed / 10}" for n, value in enumerate(early[row])]
        (run / "metrics.csv").write_text("\n".join(["round,test_acc", *lines, ""]))
    assert command.main(["table", "small.yaml", "--number", "test_acc", "--until", "1"]) == 0
    said = capsys.readouterr().out
    assert "| Local | **40.00 ± 7.07** |" in said  # 0.35 and 0.45
    assert "| Gossip | 20.00 ± 7.07 ≈ |" in said
    assert "- test_acc, rounds 0 to 1: column of metrics.csv, mean over the rounds that have it, in percent" in said
    table = make_table(plan, in_window(Measure("test_acc", "last"), 1, None, None))
    assert table.best == {"IID": "Gossip"}
    assert table.places["Gossip", "IID"].values == {0: pytest.approx(90), 1: pytest.approx(100)}
