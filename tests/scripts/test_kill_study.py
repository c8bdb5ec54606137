"""Real studies that are killed: `scripts/kill.py study` on a few moments, and its judgement."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes in Linux's /proc")


@pytest.fixture(scope="module")
def kill(load):
    return load("killing.studies")


def run_script(*words):
    """Run the script in a process of its own, since it forks; return the rows of its table as lists."""
    command = [sys.executable, str(SCRIPTS / "kill.py"), "study", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    rows = [line for line in done.stdout.splitlines() if re.match(r"\| (cell|study) ", line)]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


@pytest.mark.slow
def test_killed_study_ends_with_the_same_table():
    rows = run_script("--kills", "2", "--each", "2", "--rounds", "15", "--columns", "1", "--seed", "7")
    assert sum(int(row[2]) for row in rows) == 2
    assert all(int(row[3]) <= 5 for row in rows)


@pytest.mark.slow
def test_kills_of_cells_of_two_processes_change_nothing():
    rows = run_script(
        "--kills", "4", "--each", "2", "--rounds", "15", "--columns", "1", "--devices", "2", "--seed", "7"
    )
    assert sum(int(row[2]) for row in rows) == 4


@pytest.mark.slow
def test_forty_kills_of_studies_servers_and_cells_change_nothing():
    rows = run_script("--kills", "40", "--seed", "1")
    assert {tuple(row[:2]) for row in rows} == {
        (target, name) for target in ("cell", "server", "study") for name in ("SIGINT", "SIGKILL", "SIGTERM")
    }
    assert sum(int(row[2]) for row in rows) == 40
    assert all(int(row[3]) <= 5 for row in rows)


@pytest.mark.slow
def test_kills_of_fresh_processes_change_nothing():
    assert sum(int(row[2]) for row in run_script("--kills", "4", "--each", "4", "--seed", "2", "--cold")) == 4


# --- what it would notice ---------------------------------------------------------------------------------------------
def test_another_table_and_another_bit_are_noticed(kill, tmp_path, monkeypatch):
    made = {}
    for name in ("a", "b"):
        run = tmp_path / name / "studies" / "ended" / "cells" / "x" / "run" / "1"
        run.mkdir(parents=True)
        made[run] = {"clients.npz": {"test_acc": np.array([0.5])}}
    first, second = made
    monkeypatch.setattr(kill, "result", made.get)
    monkeypatch.setattr(kill, "table", lambda folder, *words: "same")
    setting = kill.Setting()
    assert list(kill.compare(tmp_path / "a", tmp_path / "b", setting)) == []
    made[second] = {"clients.npz": {"test_acc": np.nextafter(np.array([0.5]), 1)}}
    assert list(kill.compare(tmp_path / "a", tmp_path / "b", setting)) == ["x/clients.npz/test_acc"]
    made[second] = made[first]
    monkeypatch.setattr(kill, "table", lambda folder, *words: folder.name)
    assert next(kill.compare(tmp_path / "a", tmp_path / "b", setting)) == "the table is another one: a and not b"
    (tmp_path / "a" / "studies" / "ended" / "cells" / "x" / "run" / "2").mkdir()
    assert list(kill.compare(tmp_path / "a", tmp_path / "b", setting))[-1].startswith("the cells' runs are ['x', 'x']")


class Ended:
    def __init__(self, code, said=""):
        self.code, self.said = code, said


@pytest.mark.parametrize(
    ("signum", "code", "said", "wrong"),
    [
        (signal.SIGTERM, 143, "dfl-study: stopped by SIGTERM; 0 of 4 cells are done", None),
        (signal.SIGTERM, -15, "", None),
        (signal.SIGINT, -2, "", None),
        (signal.SIGKILL, -9, "ended: 0/4 cells done", None),
        (signal.SIGINT, 130, "dfl-study: note: each\ndfl-study: stopped by SIGINT; 0 of 4 cells are done", None),
        (signal.SIGTERM, 143, "", "it should say"),
        (signal.SIGINT, 143, "dfl-study: stopped by SIGINT; resume it", "exit code 143"),
        (signal.SIGKILL, -9, "Traceback (most recent call last):", "is not understood"),
        (signal.SIGKILL, -9, "Local, IID, seed 0: failed: it", "is not understood"),
    ],
)
def test_the_end_of_a_study_is_judged(kill, signum, code, said, wrong):
    found = list(kill.judge(Ended(code, said), signum))
    assert found == [] if wrong is None else len(found) == 1 and wrong in found[0]
