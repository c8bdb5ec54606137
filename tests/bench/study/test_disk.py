"""Disk usage of cells: measured, predicted by `--explain`, and freed after the end."""

import subprocess

import numpy as np
import pytest

from dfl_lightning.bench.study.cells import checking, estimate
from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.cells.disk import Space, free_in, give_back, space_of
from dfl_lightning.bench.study.cells.estimate import Timing, time_cell
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.processes.starting import Starter
from dfl_lightning.cli.resolve import Outline

MB = 10**6


def checkpoints(folder):
    """List the names in the folders of checkpoints, by cell."""
    return {
        run.parents[1].name: sorted(f.name for f in (run / "checkpoints").glob("*")) for run in folder.glob("*/run/*")
    }


def without_date(printed):
    """Cut off the lines above a table, and its last note, which has the minute in which it was made."""
    return printed.partition("\n\n")[2].partition("\n- made: ")[0]


def test_a_finished_cell_keeps_one_checkpoint_or_none(study_of, tmp_path, capsys, in_this_process):
    study_of(rows={"Gossip": {}}, columns={"IID": {}}, seeds=[0])
    cells = tmp_path / "studies" / "small" / "cells"
    with in_this_process():
        assert main(["run", "small.yaml"]) == 0
    (first,) = checkpoints(cells)
    assert checkpoints(cells) == {first: ["last.ckpt"]}
    table = without_date(capsys.readouterr().out)
    study_of(rows={"Gossip": {}}, columns={"IID": {}}, seeds=[0, 1])
    with in_this_process():
        assert main(["run", "small.yaml", "--discard-models"]) == 0
    assert len(checkpoints(cells)) == 2
    assert set(map(tuple, checkpoints(cells).values())) == {()}
    study_of(rows={"Gossip": {}}, columns={"IID": {}}, seeds=[0])
    capsys.readouterr()
    assert main(["run", "small.yaml"]) == 0  # nothing is trained again, and the table is the same
    assert without_date(capsys.readouterr().out) == table
    assert set(map(tuple, checkpoints(cells).values())) == {()}


@pytest.mark.parametrize("in_pieces", [False, True])
def test_nothing_is_removed_from_unfinished_cells(planned, pretend, in_pieces):
    cell = planned().distinct()[0]
    run = pretend(cell, status="stopped")
    previous = run / "checkpoints" / "previous.ckpt"
    if in_pieces:
        previous.mkdir()
        (previous / "0.pt").write_bytes(b"rows")
    else:
        previous.write_bytes(b"rows")
    give_back(state_of(cell), keep_models=False)
    assert checkpoints(cell.folder.parent) == {cell.folder.name: ["last.ckpt", "previous.ckpt"]}
    pretend(cell)
    give_back(state_of(cell))
    assert checkpoints(cell.folder.parent) == {cell.folder.name: ["last.ckpt"]}
    give_back(state_of(cell), keep_models=False)
    assert not (run / "checkpoints").exists()
    assert state_of(cell).is_done


def test_suggested_command_repeats_the_option(planned, study_of, pretend, capsys, monkeypatch):
    from dfl_lightning.bench.study.processes import running

    study_of()
    monkeypatch.setattr(checking, "outline_of", lambda config, common: Outline({}, ()))
    monkeypatch.setattr(running, "run_cells", lambda cells, jobs, progress, stops, starter: stops._record(2, None))
    assert main(["run", "small.yaml", "--discard-models"]) == 130
    assert "continue with: dfl-study run small.yaml --discard-models" in capsys.readouterr().err


def test_tables_but_not_models_grow_with_the_rounds(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name, size in {"metrics.csv": 20, "split.npz": 7000, "config.yaml": 50}.items():
        (run / name).write_bytes(bytes(size))
    assert space_of(run, 2, 10) is None
    (run / "checkpoints" / "last.ckpt").write_bytes(bytes(4000))
    (run / "checkpoints" / "previous.ckpt").write_bytes(bytes(4000))
    assert space_of(run, 2, 10) == Space(models=4000, tables=5 * 20 + 7050)
    assert space_of(run, 0, 10) is None
    for rounds in (1, 2):  # the table may be a round ahead of the arrays
        np.savez(run / "graphs.npz", round=np.repeat(np.arange(rounds), 50))
        arrays = (run / "graphs.npz").stat().st_size
        assert space_of(run, 2, 10) == Space(models=4000, tables=5 * 20 + 7050 + 10 // rounds * arrays)


@pytest.mark.slow
def test_one_or_two_rounds_predict_the_size_of_a_cell(study_of, tmp_path, in_this_process, monkeypatch):
    """By the files that the whole run leaves, as the system counts them."""
    data = {"class_path": "Digits", "init_args": {"num_clients": 40, "samples_per_client": 20}}
    model = {"network": {"class_path": "MLP", "init_args": {"hidden": [64]}}, "local_epochs": 1}
    selection = {"class_path": "Gossip", "init_args": {"k": 20}}
    trainer = {"max_rounds": 40, "accelerator": "cpu"}
    base = {"trainer": trainer, "model": model, "data": data, "selection": selection}
    study_of(base=base, rows={"Gossip": {}}, columns={"IID": {}})
    cell = make_plan(read_study_file("small.yaml"), tmp_path / "studies" / "small").distinct()[0]
    with Starter() as starter:
        found = [time_cell(cell, 1, starter.start_when_ready).space]
        monkeypatch.setattr(estimate, "ENOUGH", 0.0)  # every round is a long one
        found.append(time_cell(cell, 1, starter.start_when_ready).space)
    with in_this_process():
        assert main(["run", "small.yaml"]) == 0
    run = state_of(cell).run

    def counted(*words):
        return int(subprocess.run(["du", "-sb", *words, run], capture_output=True, text=True).stdout.split()[0])

    models = (run / "checkpoints" / "last.ckpt").stat().st_size
    for expected in found:
        assert expected.models == pytest.approx(models, rel=0.1)
        assert expected.tables == pytest.approx(counted("--exclude=checkpoints") - 4096, rel=0.3)


def test_explain_predicts_disk_usage(planned, pretend, monkeypatch):
    """4 cells of 2 columns; one is done, one has begun."""
    spaces = {"Gossip": Space(100 * MB, 3 * MB), "Local": Space(50 * MB, MB)}
    monkeypatch.setattr(checking, "outline_of", lambda config, common: Outline({}, ()))
    monkeypatch.setattr(estimate, "time_cell", lambda cell, threads, start: Timing(1.0, 1.0, None, spaces[cell.row]))
    plan = planned()
    monkeypatch.setattr(estimate, "free_in", lambda folder: 400 * MB)
    said = list(estimate.explain(plan, jobs=2))[-1]
    # 2 (103 + 51) and 2 second checkpoints; with the option 2 (3 + 1) and the checkpoints of 2 cells that run
    where = f"400.0 MB are free in {plan.folder}"
    assert said == f"disk: 508.0 MB, 408.0 MB with --discard-models; {where}; that is too little"
    monkeypatch.setattr(estimate, "free_in", lambda folder: 600 * MB)
    assert list(estimate.explain(plan, jobs=2))[-1].endswith(f"600.0 MB are free in {plan.folder}")
    run = pretend(plan.cells["Gossip", "IID", 0], 0.8)
    (run / "checkpoints" / "last.ckpt").write_bytes(bytes(100 * MB))
    run = pretend(plan.cells["Local", "rotated", 0], status="stopped")
    (run / "checkpoints" / "last.ckpt").write_bytes(bytes(50 * MB))
    said = list(estimate.explain(plan, jobs=1))[-1]
    assert said.startswith("disk: 254.")  # Gossip, rotated: 100 and less than 1; Local, IID: 51; the other is there


def test_finished_study_needs_no_disk_line(planned, pretend, monkeypatch):
    monkeypatch.setattr(checking, "outline_of", lambda config, common: Outline({}, ()))
    plan = planned()
    for cell in plan.distinct():
        pretend(cell, 0.8)
    assert not any(line.startswith("disk: ") for line in estimate.explain(plan, jobs=1))


def test_free_space_is_that_of_the_nearest_folder(tmp_path):
    assert free_in(tmp_path / "not" / "yet" / "there") == pytest.approx(free_in(tmp_path), rel=0.1)
