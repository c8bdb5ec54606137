"""Every benchmark: examples in docstrings hold, and one sentence explains if it cannot measure."""

import doctest
from pathlib import Path

import pytest

EXAMPLES = (
    "bench_cells",
    "bench_processes",
    "bench_scale",
    "bench_start",
    "benchmarks.federations",
    "benchmarks.tables",
)


@pytest.mark.parametrize("name", [*EXAMPLES, "comparisons.spread"])
def test_examples_in_docstrings_hold(load, name):
    found = doctest.testmod(load(name))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("name", ["bench_memory", "bench_scale"])
def test_other_systems_than_linux_are_refused_in_one_sentence(load, name, monkeypatch, capsys):
    bench = load(name)
    monkeypatch.setattr(bench, "PROC", Path("/no/such/file"))
    assert bench.main([]) == 2
    assert capsys.readouterr().err == f"{name}: there is no /proc here; run it on Linux\n"
