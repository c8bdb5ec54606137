"""The benchmark of cells a minute on a few cells."""

import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured in Linux's /proc")


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_cells")


@pytest.mark.slow
def test_forks_and_new_processes_are_rows_and_forks_take_less(bench, capsys, monkeypatch):
    monkeypatch.setenv("DFL_FORK_CELLS", "1")  # put back what it leaves
    assert bench.main(["--cells", "2", "--turns", "1"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == ["new Pythons", "forks"]
    new, forks = (list(map(float, row[1:])) for row in rows)
    assert all(value > 0 for value in [*new, *forks])
    assert forks[2] < new[2]  # no library is imported before the first round
