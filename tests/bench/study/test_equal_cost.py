"""Scores at equal seconds, bytes and trainings of a client, with numbers by hand."""

import pytest

from dfl_lightning import UserError
from dfl_lightning.bench.study import command
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.measures.equal_cost import read_equal_cost
from dfl_lightning.bench.study.tables.table import make_table

# Of each row and seed: accuracy, simulated seconds, bytes of the round, and clients of four that train in the round.
RUNS = {
    ("Fast", 0): [(0.1, 1, 9, 4), (0.2, 2, 9, 4), (0.3, 3, 9, 4), (0.4, 4, 9, 4)],
    ("Fast", 1): [(0.2, 1, 9, 4), (0.3, 2, 9, 4), (0.4, 3, 9, 4), (0.5, 4, 9, 4)],
    ("Slow", 0): [(0.5, 3, 20, 2), (0.6, 6, 20, 2), (0.7, 9, 20, 2), (0.8, 12, 20, 2)],
    ("Slow", 1): [(0.6, 2, 20, 2), (0.7, 3.9, 20, 2), (None, 6, 20, 2), (0.9, 8, 20, 2)],
    ("Alone", 0): [(0.2, 2, 0, 4), (0.3, 4, 0, 4), (0.35, 6, 0, 4), (0.35, 8, 0, 4)],
    ("Alone", 1): [(0.2, 2, 0, 4), (0.3, 4, 0, 4), (0.35, 6, 0, 4), (0.45, 8, 0, 4)],
}


@pytest.fixture
def costs(planned, pretend):
    """Write a study whose runs have these scores and costs in each round."""

    def costs(of_runs, columns="round,test_acc,simulated_seconds,bytes_received,active"):
        rows = {row: {"selection.k": at} for at, row in enumerate(dict.fromkeys(row for row, _ in of_runs))}
        plan = planned(rows=rows, columns={"IID": {}}, seeds=sorted({seed for _, seed in of_runs}))
        for (row, seed), rounds in of_runs.items():
            run = pretend(plan.cells[row, "IID", seed], 0.0, tested=seed, clients=4)
            lines = [",".join(["" if v is None else f"{v}" for v in (n, *of)]) for n, of in enumerate(rounds)]
            (run / "metrics.csv").write_text("\n".join([columns, *lines, ""]))
        return plan

    return costs


@pytest.mark.parametrize(
    ("cost", "fast", "slow", "alone", "said"),
    [
        # Within 4 s, which is where Fast ends with both seeds.
        ("seconds", {0: 40, 1: 50}, {0: 50, 1: 70}, {0: 30, 1: 30}, "simulated seconds of a client, {}: IID 4"),
        # Within 36 bytes; Alone receives nothing, so that its last models count.
        ("bytes", {0: 40, 1: 50}, {0: 50, 1: 60}, {0: 35, 1: 45}, "received bytes of a client, {}: IID 36 B"),
        # Within two trainings, since half of Slow's clients train in a round.
        ("trainings", {0: 20, 1: 30}, {0: 80, 1: 90}, {0: 30, 1: 30}, "trainings of a client, {}: IID 2"),
    ],
)
def test_rows_are_compared_at_the_largest_common_cost(costs, cost, fast, slow, alone, said):
    table = make_table(costs(RUNS), read_equal_cost(cost))
    assert [table.places[row, "IID"].values for row in table.rows] == [
        {seed: pytest.approx(value) for seed, value in of_row.items()} for of_row in (fast, slow, alone)
    ]
    text = formats.markdown(table)
    assert f"at these {said.format('from the seed with the fewest to the one with the most')}\n" in text
    assert f"acc_at_equal_{cost}: test accuracy, mean over clients, of the last evaluation within the " in text


def test_each_seed_is_compared_at_its_own_common_cost(costs):
    """Fast ends after 2 s with seed 0, and after 4 s with seed 1."""
    table = make_table(costs({**RUNS, ("Fast", 0): RUNS["Fast", 0][:2]}), read_equal_cost("seconds"))
    assert table.places["Alone", "IID"].values == {0: 20.0, 1: 30.0}
    assert table.places["Slow", "IID"].values == {1: 70.0}  # with seed 0 it is first evaluated after 3 s
    assert "the one with the most: IID 2 to 4\n" in formats.markdown(table)


def test_rows_without_a_clock_have_no_equal_seconds(costs):
    runs = {key: [(acc, received, active) for acc, _, received, active in of] for key, of in RUNS.items()}
    plan = costs(runs, "round,test_acc,bytes_received,active")
    with pytest.raises(UserError, match=r"--at-equal seconds: Fast, IID, seed 0 has no simulated seconds; give all"):
        make_table(plan, read_equal_cost("seconds"))
    assert make_table(plan, read_equal_cost("bytes")).places["Slow", "IID"].values == {0: 50.0, 1: 60.0}


def test_the_option_excludes_other_measures(capsys):
    assert command.main(["table", "digits_small", "--at-equal", "bytes", "--reach", "90"]) == 2
    assert "a table compares --reach or --at-equal, not both" in capsys.readouterr().err
