"""Times that `--explain` measures, its predictions, and the remaining time of a study."""

import time

import pytest

from dfl_lightning.bench.study.cells import checking, estimate
from dfl_lightning.bench.study.cells.cell_state import state_of, write_failure
from dfl_lightning.bench.study.cells.estimate import Timing
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.progress import Progress, Rates
from dfl_lightning.cli.resolve import Outline

ROWS = {"A": {"selection.k": 1}, "B": {"selection.k": 2}, "C": {"selection.k": 3}}


@pytest.fixture
def timed(monkeypatch):
    """Record the cells that are timed; each row costs its multiple of a column's seconds."""
    timed = []
    seconds = {"A": 1.0, "B": 2.0, "C": 4.0, "IID": 10.0, "rotated": 30.0}

    def time_cell(cell, threads, start):
        timed.append((cell.row, cell.column))
        return Timing(seconds[cell.row] * seconds[cell.column], seconds[cell.row], 10**9)

    monkeypatch.setattr(estimate, "time_cell", time_cell)
    monkeypatch.setattr(checking, "outline_of", lambda config, common: Outline({}, ()))
    return timed


def test_every_row_is_timed_once_and_every_column(planned, timed):
    lines = list(estimate.explain(planned(rows=ROWS, seeds=[0, 1]), jobs=1))
    assert timed == [("A", "IID"), ("B", "IID"), ("C", "IID"), ("A", "rotated")]
    table = {tuple(line.split()[:2]): " ".join(line.split()[2:]) for line in lines if line.split()[0] in ROWS}
    assert table["C", "IID"] == "2 4 40.00 5.3 minutes 32 s"  # 8 rounds
    assert table["C", "rotated"] == "2 4 ~120.00 16.0 minutes 32 s"
    # (1 + 2 + 4) times (10 + 30) seconds, 4 rounds, 2 seeds; of a core, (1 + 2 + 4) times 2
    assert lines[-3].startswith("together 37.3 minutes with one cell at a time on ")
    assert lines[-3].endswith("; 1.9 minutes of one core, which do not depend on what else the machine does")
    assert lines[-2] == "memory of a cell: up to 1.0 GB, the libraries included; 1 at a time"
    assert lines[-1] == "disk: not known, since no timed run came to a checkpoint"
    assert lines[1] == "12 cells of 3 rows, 2 columns, 2 seeds: 12 waiting"


def test_the_estimate_says_that_batches_grow(planned, timed):
    plan = planned(rows={**ROWS, "A": {**ROWS["A"], "model.batch_growth": 4}}, seeds=[0])
    assert any("have fewer and larger batches" in line for line in estimate.explain(plan, jobs=1))
    assert not any("larger batches" in line for line in estimate.explain(planned(rows=ROWS, seeds=[0]), jobs=1))


@pytest.mark.parametrize(
    ("rate", "row", "alone", "by_two"),
    [
        (0.02, "0.2 s", "0.5 s", "0.2 s"),
        (1.0, "8.0 s", "24 s", "12 s"),
        (10.0, "80 s", "4.0 minutes", "2.0 minutes"),
        (1000.0, "2.2 hours", "6.7 hours", "3.3 hours"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(planned, timed, monkeypatch, rate, row, alone, by_two):
    monkeypatch.setattr(estimate, "time_cell", lambda cell, threads, start: Timing(rate, rate))
    lines = list(estimate.explain(planned(rows=ROWS, columns={"IID": {}}, seeds=[0, 1]), jobs=2))
    of_row = next(line for line in lines if line.startswith("A "))  # 2 seeds of 4 rounds; there are 3 rows
    assert " ".join(of_row.split()[5:]) == f"{row} {row}"
    (together,) = (line for line in lines if line.startswith("together "))
    assert together.startswith(f"together {alone} with one cell at a time on ")
    assert f", {by_two} with -j 2; {alone} of one core, " in together


def test_finished_cells_are_neither_timed_nor_counted(planned, timed, pretend):
    plan = planned(rows=ROWS)
    for column in ("IID", "rotated"):
        pretend(plan.cells["A", column, 0], 0.8)
    lines = list(estimate.explain(plan, jobs=1))
    assert ("A", "IID") not in timed
    assert any(line.startswith("~: ") for line in lines)
    assert not any(line.startswith("A ") for line in lines)


def test_round_that_does_not_end_gives_no_number(planned, timed, monkeypatch):
    monkeypatch.setattr(estimate, "time_cell", lambda cell, threads, start: Timing(None))
    lines = list(estimate.explain(planned(), jobs=1))
    assert "?: no round ended within 600 s, and it is not in the sum" in lines


def test_marks_are_explained_only_if_used(planned, timed):
    lines = list(estimate.explain(planned(columns={"IID": {}}, rows=ROWS), jobs=1))
    assert not any("~" in line for line in lines)


@pytest.mark.slow
def test_real_rounds_are_timed_and_leave_no_files(study_of, tmp_path, capsys):
    study_of(columns={"IID": {}}, rows={"Gossip": {}})
    assert main(["run", "small.yaml", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "1 cell of 1 row, 1 column, 1 seed: 1 waiting" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("Gossip"))
    assert 0 <= float(row[4]) < 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml"]


def test_rates_come_from_the_nearest_cells(planned, pretend):
    plan = planned(rows=ROWS)
    pretend(plan.cells["A", "IID", 0], 0.8)  # 8 seconds, 4 rounds
    rates = Rates([state_of(plan.cells["A", "IID", 0])])
    known = [rates.of(plan.cells[row, column, 0]) for row, column in (("A", "IID"), ("B", "IID"), ("B", "rotated"))]
    assert known == [2.0, 2.0, 2.0]
    more = rates.with_running([(plan.cells["B", "IID", 0], 12.0, 2)])
    assert more.of(plan.cells["B", "IID", 0]) == 6.0
    assert more.of(plan.cells["C", "IID", 0]) == pytest.approx(20 / 6)
    assert rates.of(plan.cells["B", "IID", 0]) == 2.0
    assert Rates().of(plan.cells["A", "IID", 0]) is None


def test_the_time_that_is_left_is_shared_by_the_processes(planned, pretend):
    plan = planned(rows=ROWS, columns={"IID": {}})
    pretend(plan.cells["A", "IID", 0], 0.8)
    progress = Progress(plan.distinct(), 2, "acc_last")
    assert (
        progress.counts() == "1/3 cells done · 0 running · 0 failed · 0:08 left"
    )  # 2 cells of 4 rounds of 2 s, by two


def test_remaining_time_counts_the_start_of_each_cell(planned, pretend, monkeypatch):
    plan = planned(rows=ROWS, columns={"IID": {}})
    first, second, _ = plan.distinct()
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = Progress(plan.distinct(), 1, None)
    progress.started(first)
    pretend(first, 0.8)  # 8 seconds of rounds, of the 14 that the process lasted
    clock[0] += 14
    progress.ended(state_of(first))
    assert progress.counts().endswith("0:28 left")  # two cells of 8 seconds and a start of 6
    progress.started(second)
    clock[0] += 4  # of its start 2 are left
    assert progress.counts().endswith("0:24 left")
    run = pretend(second, status="running")
    (run / "metrics.csv").write_text("round\n0\n")
    clock[0] += 4  # one round in the 2 seconds after its start; 3 rounds are left
    assert progress.counts().endswith("0:20 left")


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (0, "failed: round 1: training of client 1 diverged"),
        (1, "failed after 1 round: round 2: training of client 1 diverged"),
        (3, "failed after 3 rounds: round 4: training of client 1 diverged"),
    ],
)
def test_a_cell_that_fails_names_its_round_once(planned, pretend, capsys, rounds, said):
    plan = planned(columns={"IID": {}})
    cell = plan.distinct()[0]
    run = pretend(cell, status="running", rounds=rounds)
    (run / "metrics.csv").write_text("round\n" + "".join(f"{r}\n" for r in range(rounds)))
    write_failure(cell, f"round {rounds + 1}: training of client 1 diverged")
    Progress(plan.distinct(), 1, "acc_last").ended(state_of(cell))
    assert capsys.readouterr().out.startswith(f"{cell.label}: {said} · ")


def test_finished_study_names_no_remaining_time(planned, pretend):
    plan = planned(columns={"IID": {}})
    for cell in plan.distinct():
        pretend(cell, 0.8)
    assert Progress(plan.distinct(), 1, "acc_last").counts() == "2/2 cells done · 0 running · 0 failed"
