"""The scale benchmark on tiny federations: a process a cell, exponents of known numbers, and what is not run."""

import json
import sys

import numpy as np
import pytest
import torch

PARTS = ["train", "evaluate", "compare", "mix", "rest"]
CLIENTS = (16, 24)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured in Linux's /proc")


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_scale")


def measured(system, clients, wall, grown):
    """Make a cell as its process reports it."""
    seconds = {"wall": wall, **dict.fromkeys(PARTS, wall / 5)}
    predicted = {"rows": 1e6, "data": 1e6, "work": 1e6, "links": 7e6}
    found = {"system": system, "clients": clients, "nodes": clients, "seconds": seconds, "grown": grown}
    return {**found, "predicted": predicted, "setup": 2.5, "others": 0.0}


def cells_of(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [((100, 3.0), (1000, 30.0), 1.0), ((100, 3.0), (1000, 300.0), 2.0), ((300, 2.0), (1000, 2.0), 0.0)],
)
def test_an_exponent_is_a_slope_between_logarithms(bench, before, now, expected):
    assert bench.exponent(before, now) == pytest.approx(expected)


def test_growth_compares_measured_cells_within_a_system(bench):
    cells = [measured("a", 100, 1, 8e6), measured("a", 1000, 10, 800e6), {"system": "a", "clients": 3000}]
    cells += [measured("b", 100, 1, 1), measured("b", 300, 9, 1)]
    assert bench.growth(cells, "seconds.wall") == ["", "1.0", "", "", "2.0"]
    assert bench.growth(cells, "grown") == ["", "2.0", "", "", "0.0"]


def test_tables_hold_what_was_measured(bench):
    cells = [measured("a", 100, 1.0, 8e6), measured("a", 1000, 100.0, 80e6)]
    cells.append({"system": "a", "clients": 3000, "obstacle": "not finished within 300 s"})
    times, memory = bench.times_table(cells, 1), bench.memory_table(cells)
    first, second, third = cells_of(times)
    assert [first[part] for part in ("s/round", *PARTS)] == ["1", *["0.2"] * 5]
    assert (second["ms/client"], second["growth"], second["mix growth"]) == ("100.00", "2.0", "2.0")
    assert third["s/round"] == "–"
    assert "a, 3,000 clients: not finished within 300 s." in times.notes
    first, second, _ = cells_of(memory)
    assert (first["predicted"], first["measured"], first["kB/client"]) == ("10", "8", "80.0")
    assert (second["measured"], second["growth"], second["s before the first round"]) == ("80", "1.0", "2.5")


@pytest.mark.slow
def test_each_number_of_clients_is_measured_in_its_own_process(bench, tmp_path, capsys):
    words = ["--systems", "afind", "--clients", *map(str, CLIENTS), "--degree=4", "--samples=8", "--rounds=1"]
    assert bench.main([*words, f"--out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "scale.json").read_text())["tables"]["scale"]["numbers"]
    assert [(cell["system"], cell["clients"]) for cell in numbers] == [("afind", m) for m in CLIENTS]
    for cell in numbers:
        spent = cell["seconds"]
        assert sum(spent[part] for part in PARTS) == pytest.approx(spent["wall"])
        assert min(spent[part] for part in PARTS) > 0
        assert list(cell["predicted"]) == ["rows", "data", "work", "links"]
        assert cell["parameters"] == 64 * 32 + 32 + 32 * 10 + 10
    page = (tmp_path / "scale.md").read_text()
    assert [line for line in printed.splitlines() if line.startswith("|")] == [
        line for line in page.splitlines() if line.startswith("|")
    ]
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_cells_that_take_too_long_are_skipped_and_named(bench, capsys):
    words = ["--systems", "gossip", "--degree=4", "--samples=8", "--rounds=1", "--clients", "16", "1000", "3000"]
    assert bench.main([*words, "--limit=0.01"]) == 0
    printed = capsys.readouterr().out
    assert "- gossip, 16 clients: not finished within 0 s." in printed
    assert "- gossip, 1,000 clients: not run: 16 clients were too many already." in printed
    all_pairs = bench.cell("fdms", 10_000, bench.make_parser().parse_args([]), [])
    assert all_pairs["obstacle"] == "not run: it compares all pairs of clients"


@pytest.mark.parametrize("words", [["--clients", "8"], ["--clients", "101", "--degree=5"]])
def test_impossible_graph_is_refused_in_one_sentence(bench, words, capsys):
    assert bench.main(words) == 2
    assert "every number of --clients must be above --degree" in capsys.readouterr().err


def test_writer_pool_repeats_writers_until_each_client_has_one(bench, tmp_path):
    from benchmarks.pools import make_pool

    writers = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    images = np.arange(len(writers), dtype=np.uint8)[:, None, None] * np.ones((1, 28, 28), np.uint8)
    is_test = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], bool)
    names, labels = np.array(["a", "b", "c"]), writers.astype(np.int64)
    np.savez(tmp_path / "femnist.npz", images=images, labels=labels, writers=writers, writer_ids=names, is_test=is_test)
    _, data = make_pool({"clients": 7, "femnist": str(tmp_path)})
    data.prepare_data()
    data.setup("fit")
    source = data.load()
    assert source.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13] * 2 + [0, 1, 2, 3]
    assert torch.bincount(source.writers).tolist() == [4, 5, 3, 4, 5, 3, 4]
    assert source.test_images[:, 0, 0, 0].tolist() == [4, 10, 14] * 2 + [4]
    assert [len(data.clients.train[i]) + len(data.clients.val[i]) for i in range(7)] == [4, 5, 3, 4, 5, 3, 4]
