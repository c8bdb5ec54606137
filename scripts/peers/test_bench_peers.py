"""The comparison with other simulators: the work is the same, and differences are reported."""

import dataclasses
import doctest
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "bench_peers.py"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("bench_peers")
    sys.path.remove(str(FOLDER))


@pytest.fixture
def words(bench):
    """Make a class with short makers of lines and runs."""

    class Words:
        @staticmethod
        def line(name, *runs, reason=""):
            from peer_table import Line

            peer = next(peer for peer in bench.PEERS if peer.name == name)
            return Line(peer, dict(enumerate(runs)), reason)

        @staticmethod
        def run(*seconds, accuracy=0.9, steps=12, **more):
            rest = {"threads": 1, "processes": 1, "version": "x 1", "load_before": 0.5, **more}
            return {"seconds": list(seconds), "accuracy": accuracy, "steps": steps, **rest}

    return Words


def start(*options, **more):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **more)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Run `plain` and `ours` once in both kinds of work: (process, peers.json, peers.md)."""
    folder = tmp_path_factory.mktemp("peers")
    sizes = "--clients 6 --participants 3 --samples 20 --batch-size 8 --local-epochs 2 --rounds 3"
    # three rounds of three small clients do not converge: agreement to a quarter is all that can be asked
    agree = "--lr 0.2 --tolerance 0.25 --gossip-tolerance 0.25"
    done = start(
        *f"--data Digits --runners plain ours --repeats 1 --threads 1 {sizes} {agree}".split(),
        *("--venvs", folder / "venvs", "--out", folder / "out"),
    )
    assert done.returncode == 0, done.stderr
    text = (folder / "out" / "peers.md").read_text(encoding="utf-8")
    return done, json.loads((folder / "out" / "peers.json").read_text()), text


@pytest.mark.slow
@pytest.mark.parametrize(("work", "trained"), [("fedavg", 3), ("gossip", 6)])
def test_plain_and_ours_take_the_expected_number_of_steps(compared, work, trained):
    runners = compared[1][work]["runners"]
    assert set(runners) == {"plain", "ours"}
    for name in runners:
        run = runners[name]["runs"]["0"]
        assert run["steps"] == 3 * trained * 2 * math.ceil(20 / 8)
        assert len(run["seconds"]) == len(run["cpu_seconds"]) == 3
        assert min(run["seconds"]) > 0
        assert run["accuracy"] > 0.2  # ten classes: chance is 0.1


@pytest.mark.slow
def test_the_table_names_the_runners_their_engine_and_the_threads(compared):
    done, record, text = compared
    assert text.strip() in done.stdout
    assert "| plain | torch " in text
    engine = record["fedavg"]["runners"]["ours"]["runs"]["0"]["engine"]
    assert f", engine {engine} |" in text
    assert "| 1 x 1 |" in text
    assert "OMP_NUM_THREADS 1" in text


@pytest.mark.parametrize("name", ["plain", "ours"])
def test_runners_compute_fedavg_as_in_the_paper(bench, name, tmp_path, monkeypatch):
    """Compare with the formulas written out; batches of a client's whole data make the run deterministic."""
    from peer_job import Job
    from peer_workload import load, write

    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # Lightning sets it; this takes it back afterwards
    data = load("Digits", None)
    write(tmp_path / "data.npz", data, "mlp", clients=3, samples=10, test_samples=50, seed=1)
    job = Job(str(tmp_path / "data.npz"), 1 / 16, 0.0, "mlp", 10, "fedavg", 3, 2, 10, 0.5, 8, 0, str(tmp_path))
    server = job.new_network()
    for _ in range(job.rounds):
        models = []
        for i in range(3):
            x, y = job.client(i)
            weights = [p.detach().clone().requires_grad_() for p in server.parameters()]
            for _ in range(job.local_epochs):
                hidden = torch.relu(x.flatten(1) @ weights[0].T + weights[1])
                loss = nn.functional.cross_entropy(hidden @ weights[2].T + weights[3], y)
                moves = torch.autograd.grad(loss, weights)
                weights = [(w - 0.5 * g).detach().requires_grad_() for w, g in zip(weights, moves, strict=True)]
            models.append(weights)
        with torch.no_grad():
            for p, *ws in zip(server.parameters(), *models, strict=True):
                p.copy_(sum(ws) / 3)
    result = importlib.import_module(f"run_{name}").run(job)
    assert result["accuracy"] == job.accuracy(server) > 0.4
    assert result["steps"] == 8 * 3 * 2


def test_a_failing_runner_has_a_sentence_in_the_table(bench, words, tmp_path):
    peer = dataclasses.replace(bench.PEERS[0], name="missing")
    found = bench.one(peer, Path(sys.executable), {"folder": str(tmp_path / "runs")}, 60.0, None)
    assert "run_missing.py" in found
    line = dataclasses.replace(words.line("pfl"), reason=f"failed: {found}")
    from peer_table import COLUMNS, markdown

    (row,) = [row for row in markdown("fedavg", "FedAvg", [line], 12, 0.1, 10).splitlines() if row.startswith("| pfl")]
    assert found in row
    assert row.count("|") == len(COLUMNS) + 1


def test_a_failed_installation_is_a_reason_not_a_crash(bench, tmp_path, monkeypatch):
    import peer_environments

    peer = next(peer for peer in bench.PEERS if peer.name == "pfl")
    calls = []

    def call(command, out, timeout):
        calls.append(command)
        if "pip" in command:
            out.write("Looking…\nERROR: No matching distribution found for pfl==0.6.0\n")
            out.flush()
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(peer_environments, "_call", call)
    monkeypatch.setattr(peer_environments, "_share_packages", lambda python: None)
    with pytest.raises(peer_environments.NotInstalled, match=r"No matching distribution found for pfl==0\.6\.0$"):
        peer_environments.python_of(peer, tmp_path)
    assert calls[-1][-1] == "pfl==0.6.0"


def test_a_peer_does_not_see_this_library(monkeypatch, bench):
    from peer_environments import clean_environment

    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" not in clean_environment()
    for peer in bench.PEERS:
        text = (FOLDER / f"run_{peer.name}.py").read_text(encoding="utf-8")
        assert ("import dfl_lightning" in text) == (peer.name == "ours")


def test_ratios_are_medians_of_neighbouring_runs(words):
    from peer_table import markdown

    slow = words.line("plain", words.run(50, 4, 6, 5), words.run(50, 40, 60, 50), words.run(50, 9, 9, 9))
    ours = words.line("ours", words.run(1, 2.5), words.run(1, 10), words.run(1, 9), reason="")
    (row,) = [
        row for row in markdown("fedavg", "", [slow, ours], 12, 0.1, 10).splitlines() if row.startswith("| plain")
    ]
    assert "| 9 | 2.00 (1.00 to 5.00) |" in row  # 5/2.5, 50/10, 9/9; the median second is 9


def test_other_numbers_of_steps_or_accuracies_are_complaints(words):
    from peer_table import complaints, markdown

    plain, ours = words.line("plain", words.run(1, 1)), words.line("ours", words.run(1, 1, accuracy=0.88))
    lazy = words.line("fluke", words.run(1, 1, steps=11))
    wrong = words.line("pfl", words.run(1, 1, accuracy=0.7))
    lost = words.line("fedlab", words.run(1, 1, accuracy=float("nan")))
    assert complaints([plain, ours], 12, 0.021, 10) == []
    assert len(complaints([plain, ours], 12, 0.019, 10)) == 1
    found = complaints([plain, ours, lazy, wrong, lost], 12, 0.021, 10)
    assert [sentence.split("'")[0].split()[0] for sentence in found] == ["fluke", "pfl", "fedlab"]
    assert "learned too little" in complaints([words.line("plain", words.run(1, 1, accuracy=0.19))], 12, 1, 10)[0]
    assert "11 SGD steps instead of 12" in found[0]
    assert "**Not shown to be the same: fluke took" in markdown("fedavg", "", [plain, lazy], 12, 0.1, 10)


@pytest.mark.parametrize("name", ["peer_environments", "peer_job", "peer_table"])
def test_the_examples_of_the_docstrings_hold(bench, name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_busy_machine_is_reported(words):
    from peer_table import busy

    assert "unreliable" in busy([words.line("plain", words.run(1, 1, load_before=3.2))], 2)[0]
    assert "unreliable" not in busy([words.line("plain", words.run(1, 1, load_before=2.8))], 2)[0]


def test_clients_have_equally_many_distinct_images(bench, tmp_path):
    from peer_workload import Images, write

    images = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
    data = Images("Forty", images, np.arange(40) % 4, images[:8], np.arange(8) % 4)
    write(tmp_path / "data.npz", data, "mlp", clients=6, samples=6, test_samples=5, seed=0)
    with np.load(tmp_path / "data.npz") as held:
        shown = held["images"][held["parts"]].reshape(6, 6)
        assert len(np.unique(shown)) == 36
        assert (held["labels"][held["parts"]] == shown % 4).all()
        assert len(held["test_images"]) == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--clients 2 --participants 3", "--participants 3 are more than --clients 2"),
        ("--rounds 1", "--rounds must be 2 or more"),
        ("--clients 1", "--clients must be 2 or more"),
        ("--samples 0", "0 is not a number of 1 or more"),
        ("--runners gossipy --work fedavg", "none of the runners gossipy does fedavg"),
        ("--venvs HERE", "lies in the repository; give a folder outside it"),
        ("--data Digits --samples 100", "100 clients with 100 images each need 10000, but Digits has 1348"),
        ("--data Digits --network lenet", "lenet needs images of at least 16 x 16 pixels"),
        ("--data MNIST --data-root /nowhere", "MNIST's files are not in '/nowhere'"),
    ],
)
def test_a_mistake_is_one_sentence(bench, capsys, options, sentence):
    argv = options.replace("HERE", str(SCRIPT.parent / "venvs")).split()
    try:
        code = bench.main(argv)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
