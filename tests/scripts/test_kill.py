"""Real runs that are killed: `scripts/kill.py run` on a few moments, and its judgement."""

import re
import sys

import numpy as np
import pytest
import torch
from forked import Forked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes in Linux's /proc")


@pytest.fixture(scope="module")
def kill(load):
    return load("killing.runs")


@pytest.fixture(scope="module")
def results(load):
    return load("killing.results")


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """Run the script in a process of its own, since it forks; return its exit code and lines."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run_script(*words):
        script = Forked("kill:main", ["kill.py", "run", *words], tmp_path)
        out, err = script.communicate(timeout=3600)
        print(out, err)
        return script.returncode, out.splitlines()

    return run_script


def cells(lines):
    """Split the rows of the table into lists."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if re.match(r"\| \d", line)]


@pytest.mark.slow
def test_run_resumes_unchanged_after_losing_a_process_or_disk(run_script):
    ways = ["full disk", "SIGKILL of the other"]
    code, lines = run_script("--devices", "2", "--moments", "2", "--seed", "4", "--ways", *ways)
    assert code == 0
    rows = cells(lines)
    assert [row[:2] for row in rows] == [["2", ways[0]], ["2", ways[1]]]
    assert [row[4] for row in rows] == ["2", "2"]  # each was ended in the middle, and said so
    assert all(row[5] == "1 of 1" for row in rows)
    assert all(int(row[6]) <= 2 for row in rows)


@pytest.mark.slow
def test_fifty_runs_ended_at_random_moments_resume_unchanged(run_script):
    code, lines = run_script("--moments", "50", "--seed", "1")
    assert code == 0
    assert sum(int(row[2]) for row in cells(lines)) == 50


@pytest.mark.slow
def test_runs_in_fresh_processes_resume_unchanged(run_script):
    assert run_script("--moments", "10", "--seed", "2", "--cold")[0] == 0


# --- what it would notice ---------------------------------------------------------------------------------------------
def test_a_difference_of_a_single_bit_is_named(results):
    bits = torch.tensor([0.1, float("nan")])
    other = torch.nextafter(bits, torch.tensor(1.0))
    a = {"rows": {"models": bits}, "state": [1, {"best": 0.5}], "arrays": np.array([1.0]), "seconds": 1.0}
    assert list(results.differences(a, {**a, "seconds": 2.0})) == []
    assert list(results.differences(a, {**a, "rows": {"models": other}})) == ["/rows/models"]
    assert list(results.differences(a, {**a, "state": [1, {"best": 0.25}]})) == ["/state/1/best: 0.5 and 0.25"]
    assert list(results.differences(a, {**a, "arrays": np.array([-1.0])})) == ["/arrays"]
    assert list(results.differences(a, {**a, "more": 1})) == ["/more in one of them only"]
    assert list(results.differences(a, {"rows": a["rows"], "state": [1], "arrays": a["arrays"]})) != []


def test_zeros_of_both_signs_differ(results):
    assert list(results.differences(torch.tensor([0.0]), torch.tensor([-0.0]), "x")) == ["x"]


class Ended:
    def __init__(self, code, said=""):
        self.code, self.said = code, said


@pytest.mark.parametrize(
    ("way", "code", "said", "seconds", "wrong"),
    [
        ("SIGTERM", 143, "dfl-fit: stopped by SIGTERM after 2 complete rounds", 1, None),
        ("SIGTERM", 0, "", 1, None),
        ("SIGTERM", 1, "", 1, "exit code 1"),
        ("SIGTERM", 143, "", 1, "it should say 'stopped …'"),
        ("SIGKILL", -9, "", 1, None),
        ("SIGKILL", -9, "", float("inf"), "processes are there after"),
        ("SIGKILL", -9, "Traceback (most recent call last):", 1, "is not understood"),
        ("full disk", 2, "dfl-fit: out/last.ckpt: cannot be written", 1, None),
        ("full disk", 2, "dfl-fit: one\ndfl-fit: two", 1, "and nothing else"),
        ("SIGKILL of the other", 2, "dfl-fit: process 1 of the run has ended (signal 9)", 1, None),
        ("SIGKILL of the other", 2, "dfl-fit: cannot be reached", 1, "it should say"),
    ],
)
def test_the_end_of_a_run_is_judged(kill, way, code, said, seconds, wrong):
    found = list(kill.judge(Ended(code, said), kill.WAYS[way], seconds))
    assert found == [] if wrong is None else len(found) == 1 and wrong in found[0]


def test_a_case_is_the_same_for_the_same_seed(kill):
    ways = [(1, "SIGTERM"), (2, "SIGKILL")]
    assert kill.make_case(3, 5, ways) == kill.make_case(3, 5, ways)
    assert kill.make_case(3, 5, ways) != kill.make_case(4, 5, ways)
    assert kill.make_case(3, 5, ways).way == "SIGKILL"


@pytest.mark.parametrize("words", [[], ["runs"]])
def test_a_run_or_a_study_is_named_first(load, capsys, words):
    assert load("kill").main(words) == 2
    assert "give `run` or `study` first" in capsys.readouterr().err


def test_killing_the_other_process_needs_two_devices(kill, capsys):
    assert kill.main(["--devices", "1", "--ways", "SIGKILL of the other"]) == 2
    assert "give --devices 2 too" in capsys.readouterr().err
