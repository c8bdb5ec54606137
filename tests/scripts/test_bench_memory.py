"""The memory benchmark on small federations: a process of its own, parts of the prediction, one sentence elsewhere."""

import json
import sys

import pytest

PARTS = ["rows", "data", "work", "links"]
ROW = 4 * 62_006  # bytes of a LeNet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured in Linux's /proc")


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_memory")


@pytest.mark.slow
def test_a_federation_is_measured_in_a_process_of_its_own(bench, tmp_path, capsys):
    assert bench.main(["--only", "lenet", "--clients", "80", "--samples", "10", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (found,) = json.loads((tmp_path / "memory.json").read_text())["tables"]["memory"]["numbers"]
    assert (found["clients"], found["samples"], found["network"], found["engine"]) == (80, 10, "LeNet", "stacked")
    assert list(found["predicted"]) == PARTS
    assert found["predicted"]["rows"] == 2 * 80 * ROW
    assert found["predicted"]["data"] == 80 * 10 * (3 * 32 * 32 + 8)
    total = sum(found["predicted"].values())
    assert 2 * 80 * ROW < found["grown"] < 3 * total  # both row sets were touched
    (row,) = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| 80 x 10")]
    cells = [cell.strip() for cell in row]
    assert cells[0] == "80 x 10, LeNet, B 16"
    expected = [*(found["predicted"][part] for part in PARTS), total, found["grown"]]
    assert cells[1:7] == [f"{number / 1e6:.1f}" for number in expected]
    ratios = total / found["grown"], (total - found["predicted"]["links"]) / found["grown"]
    assert cells[7:] == [f"{ratio:.2f}" for ratio in ratios]
    assert "| 80 x 10, LeNet, B 16 |" in (tmp_path / "memory.md").read_text()


def test_federations_that_do_not_fit_are_skipped_and_named(bench, capsys):
    assert bench.main(["--only", "resnet", "--clients", "1000000"]) == 0
    assert "- 1000000 ResNet18 clients need 89391.7 GB for their rows, and" in capsys.readouterr().out


@pytest.mark.slow
def test_failing_process_is_reported(bench, capfd):
    broken = bench.Setting("NoSuchNetwork", 2, 2, 2, 1, 0)
    with pytest.raises(SystemExit, match="the process of NoSuchNetwork ended with 1; see above"):
        bench.measure(broken)
    assert "NoSuchNetwork" in capfd.readouterr().err


@pytest.mark.parametrize("number", ["1", "0", "-3"])
def test_fewer_than_two_clients_are_refused(bench, capsys, number):
    with pytest.raises(SystemExit):
        bench.main([f"--clients={number}"])
    assert f"argument --clients: {number}; it must be 2 or more" in capsys.readouterr().err
