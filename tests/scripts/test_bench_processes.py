"""The benchmark of several processes on tiny federations."""

import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured in Linux's /proc")


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_processes")


@pytest.mark.slow
def test_each_number_of_processes_is_a_row(bench, capsys):
    assert bench.main(["--clients", "32", "--degree=4", "--samples=8", "--processes", "1", "2"]) == 0
    one, two = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [cell.strip() for cell in one][0::2] == ["1", "", "0"]
    assert two[0].strip() == "2"
    assert float(two[2]) > 0


def test_timeout_is_reported(bench, capsys):
    assert bench.main(["--clients", "32", "--degree=4", "--processes", "1", "--limit=0.01"]) == 1
    assert "not finished within 0 s" in capsys.readouterr().out
