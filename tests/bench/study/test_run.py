"""`dfl-study` from its words to its exit code, with real runs."""

import contextlib
import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.cells.resolve import common_to_runs, outline_of
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan

LONG = {
    "trainer": {"max_rounds": 100_000, "checkpoint_every": 5, "accelerator": "cpu", "check_val_every_n_epoch": 1000},
    "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 6, "samples_per_client": 30}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
}
"""Cells that do not end by themselves."""


def said(capsys):
    return capsys.readouterr()


def plan_of():
    return make_plan(read_study_file("small.yaml"), Path("studies/small"))


def test_check_keeps_no_objects():
    """Otherwise the process that starts cells holds the images and models of every row, until Python collects them."""

    def banks():
        return [one for one in gc.get_objects() if type(one) is Bank]

    def held():
        return sum(one not in of_other_tests for one in banks())

    of_other_tests = weakref.WeakSet(banks())  # some of them may go meanwhile
    gc.collect()
    gc.disable()
    try:
        assert outline_of(LONG).samples["train"]
        assert held() == 0
        with common_to_runs() as common:
            for _ in range(3):
                assert outline_of(LONG, common).samples["train"]
                assert held() == 1  # the engine's, for the next one
        assert held() == 0
    finally:
        gc.enable()


@pytest.fixture
def start():
    """Start `dfl-study` in a process of its own, which is gone when the test is."""
    begun = []

    def start(*words):
        code = "import sys; from dfl_lightning.bench.study.main import study; sys.argv[0] = 'dfl-study'; study()"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen([sys.executable, "-c", code, *words], **pipes))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("where", ["here", pytest.param("in processes of their own", marks=pytest.mark.slow)])
def test_a_study_runs_and_makes_its_table(study_of, tmp_path, capsys, in_this_process, where):
    """One of its cells was run before; `test_cluster.py` has one that is a process."""
    wrong = {"model": {"on_divergence": "stop", "optimizer.lr": 1e30}}
    local = {"Local": {"selection.k": 0}}
    study_of(rows=local, columns={"IID": {}})
    with in_this_process():
        assert main(["run", "small.yaml"]) == 0
    said(capsys)
    study_of(rows={"Gossip": {}, **local, "Wrong": wrong}, columns={"IID": {}})
    with in_this_process() if where == "here" else contextlib.nullcontext():
        code = main(["run", "small.yaml", "-j", "2"])
    out, err = said(capsys)
    assert code == 2
    assert "2/3 cells done · 0 running · 1 failed" in out
    assert "| Wrong | failed |" in out
    assert "dfl-study: Wrong, IID, seed 0: " in err
    states = {place: state_of(cell) for place, cell in plan_of().cells.items()}
    assert {state.word for (row, *_), state in states.items() if row != "Wrong"} == {"done"}
    shown = {row: out[out.index(f"| {row} |") :].partition("\n")[0] for row in ("Gossip", "Local")}
    for (row, column, _), state in states.items():
        if row != "Wrong":
            accuracy = json.loads((state.run / "summary.json").read_text())["test_accuracy"]["acc_last"]
            assert f"{100 * accuracy:.2f}" in shown[row], column
    assert " than the other rows" not in out  # same seed, same split, same first models
    assert main(["status", "small.yaml"]) == 0
    assert "3 cells in studies/small: 2 done, 1 failed" in said(capsys).out
    before = {state.run: state.run.stat().st_mtime_ns for state in states.values() if state.is_done}
    assert main(["table", "small.yaml", "--format", "csv"]) == 0
    assert said(capsys).out.startswith("row,column,measure")
    assert {run: run.stat().st_mtime_ns for run in before} == before


def test_mistakes_are_named_before_anything_runs(study_of, tmp_path, capsys):
    study_of(columns={"IID": {}, "wrong": {"topology": {"generator": "ring_of_rings"}}})
    assert main(["run", "small.yaml"]) == 2
    assert "small.yaml: Gossip, wrong: " in said(capsys).err
    assert list((tmp_path / "studies" / "small" / "cells").iterdir()) == []


def test_missing_data_do_not_fail_a_study(study_of, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DFL_DATA_ROOT", str(tmp_path / "nothing"))
    study_of(columns={"FEMNIST": {"data": {"class_path": "FEMNIST", "init_args": {"num_clients": 5}}}})
    assert main(["run", "small.yaml"]) == 0
    out = said(capsys).out
    assert "| Gossip | missing data |" in out
    assert "missing data: data FEMNIST: neither a folder femnist/train nor a file femnist*.npz exists in root" in out


def test_changed_default_is_reported(planned, pretend, study_of, capsys):
    cell = planned().distinct()[0]
    pretend(cell, 0.8)
    file = cell.folder / "run.yaml"
    file.write_text(file.read_text().replace("redraw: true", "redraw: false"))
    assert main(["table", "small.yaml"]) == 2
    assert "with another default of dfl_lightning: selection.redraw was false and is true" in said(capsys).err


@pytest.mark.slow
def test_two_studies_share_the_work(study_of, start):
    study_of()
    both = [start("run", "small.yaml") for _ in range(2)]
    said = [study.communicate(timeout=300) for study in both]
    assert [study.returncode for study in both] == [0, 0], said
    assert all("4/4 cells done" in out for out, _ in said)
    begun = [line for out, _ in said for line in out.splitlines() if line.endswith(": starts")]
    assert len(begun) == len(set(begun)) == 4


def test_help_fits_a_screen(capsys):
    for words in ([], ["run"], ["status"], ["table"], ["report"], ["add-seeds"], ["list"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        lines = said(capsys).out.splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 100


def test_unknown_words_are_answered_by_one_sentence(study_of, capsys):
    study_of()
    for words, sentence in (
        (["run"], "the following arguments are required: FILE; dfl-study run --help"),
        (["run", "small.yaml", "-j", "0"], "-j 0: it is a number of cells at a time"),
        (["table", "small.yaml", "--score", "lst"], "did you mean 'last'?"),
        (["run", "smal.yaml"], "no such file, and none of that name among the shipped configs/studies"),
        (["go"], "invalid choice: 'go'"),
    ):
        assert main(words) == 2
        err = said(capsys).err
        assert sentence in err
        assert err.count("\n") == 1
