"""Costs of rounds, link by link and in simulated time, against slow sums by hand."""

import math
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import torch

from dfl_lightning import UserError, read_run
from dfl_lightning import callbacks as cb
from dfl_lightning.cli.command import run as command

FAILING = {"generator": "complete_graph", "link_up": 0.5}
SYSTEMS = {
    "gossip": (lambda: [cb.Gossip(k=2), cb.Uniform(), cb.Bernoulli(0.3)], "complete"),
    "ring": (lambda: [cb.Gossip(k=1), cb.Uniform(), cb.Bernoulli(0.3)], "ring"),
    "layers": (lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann(), cb.Bernoulli(0.3)], "complete"),
    "fetched again": (lambda: [cb.DPFL(budget=2, initial_epochs=2, period=2), cb.Uniform()], "complete"),
    "updates": (lambda: [cb.Gossip(k="all"), cb.FDMS(), cb.Uniform(), cb.Bernoulli(0.4)], "complete"),
    "server": (lambda: [cb.Gossip(k=3), cb.Uniform(), cb.Bernoulli(0.3)], "server"),
    "failing links": (lambda: [cb.Gossip(k="all"), cb.Uniform(), cb.Bernoulli(0.3)], FAILING),
}
DEVICES = {
    "speed": [1.0, 2.0, 4.0, 8.0, 16.0, 0.5],
    "up": [100.0, 50.0, 1e3, 10.0, math.inf, 70.0],
    "down": [80.0, 1e4, 20.0, math.inf, 60.0, 300.0],
    "latency": [0.5, 0.0, 0.125, 2.0, 0.25, 1.0],
}


def numbers_of(round):
    """Look up (receiver, sender, models, parts, bytes) of a round pair by pair."""
    ledger, width = round.ledger, len(round.record.bank.layout.shared)
    for i in range(round.num_nodes):
        for j in range(round.num_nodes):
            models = int(ledger.models[i, j]) + int(ledger.again[i, j])
            sizes = [size for (_, size), pairs in ledger.parts.items() if pairs[i, j]]
            if models or sizes:
                yield i, j, models, len(sizes), 4 * (models * width + sum(sizes))


def seconds_by_hand(round, sizes):
    """Compute the slowest client's seconds."""
    spent = dict.fromkeys(range(6), 0.0)
    epochs = sum(phase.duration.epochs for phase in round.phases)
    for i in round.jobs.owners.tolist():
        spent[i] += sizes[i] * epochs / DEVICES["speed"][i]
    for i, j, models, parts, size in numbers_of(round):
        rates = ([DEVICES["down"][i]] if i < 6 else []) + ([DEVICES["up"][j]] if j < 6 else [])
        late = max(DEVICES["latency"][k] for k in (i, j) if k < 6)
        spent[i if i < 6 else j] += size / min(rates) + (models + parts) * late
    return max(spent.values())


@pytest.mark.parametrize("system", SYSTEMS)
def test_links_and_seconds_are_the_sums_of_all_messages(system, start, make_data):
    make, topology = SYSTEMS[system]
    data = make_data(sizes=[9, 12, 6, 9, 9, 3], val_fraction=0.34)
    links, time = cb.LinkMessages(), cb.SimulatedTime(**DEVICES)
    run = start(*make(), links, time, topology=topology, local_epochs=2, data=data).go(4)
    n = run.bank.num_nodes
    totals = {name: torch.zeros(n, n, dtype=torch.int64) for name in links.state}
    seconds, sizes = 0.0, run.module.federation.data.sizes("train").tolist()
    for round in run.rounds:
        for i, j, models, parts, size in numbers_of(round):
            for name, more in (("models", models), ("parts", parts), ("bytes", size)):
                totals[name][i, j] += more
        seconds += seconds_by_hand(round, sizes)
        assert round.metrics["simulated_seconds"] == pytest.approx(seconds, rel=1e-12)
    for name, total in totals.items():
        kept = getattr(links, name)
        assert torch.equal(kept.links.dense(kept.values, 0), total), name
    assert total.sum() > 0
    received = sum(round.metrics["bytes_received"] for round in run.rounds) * 6
    assert int(links.bytes.values.sum()) == pytest.approx(received, rel=1e-12)
    assert system != "fetched again" or any(round.record.ledger.repeated for round in run.rounds)


@pytest.mark.parametrize("system", SYSTEMS)
def test_density_and_symmetry_are_those_of_networkx(system, start, make_data):
    make, topology = SYSTEMS[system]
    run = start(*make(), cb.GraphSparsity(), topology=topology, data=make_data(samples=9, val_fraction=0.34)).go(3)
    for round in run.rounds:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(round.num_nodes))
        graph.add_edges_from((j, i) for i, j, *_ in numbers_of(round))
        possible = len(run.module.federation.topology.linked(round.index)) / (round.num_nodes * (round.num_nodes - 1))
        assert round.metrics["link_density"] == pytest.approx(nx.density(graph) / possible)
        if graph.number_of_edges():
            assert round.metrics["link_symmetry"] == pytest.approx(nx.reciprocity(graph))
        assert 0 <= round.metrics["link_density"] <= 1


def test_a_round_without_messages_has_no_symmetry(start):
    run = start(cb.Gossip(k=0), cb.Uniform(), cb.GraphSparsity(), cb.SimulatedTime(2.0, 1.0, 1.0)).go(2)
    assert [round.metrics["link_density"] for round in run.rounds] == [0.0, 0.0]
    assert all("link_symmetry" not in round.metrics for round in run.rounds)
    assert [round.metrics["simulated_seconds"] for round in run.rounds] == [3.0, 6.0]  # six images, two a second


def test_dropped_clients_take_no_time(start, trace):
    up = trace("1 1 1 1 1 1", "0 1 1 1 1 1", "0 0 0 0 0 0")
    time = cb.SimulatedTime([0.5, 6, 6, 6, 6, 6], math.inf, math.inf)
    run = start(cb.Gossip(k=2), cb.Uniform(), up, time, rounds=3).go(3)
    assert [round.metrics["simulated_seconds"] for round in run.rounds] == [12.0, 13.0, 13.0]


def test_diverged_training_takes_its_time(start):
    time = cb.SimulatedTime([0.5, 6, 6, 6, 6, 6], math.inf, math.inf)
    run = start(cb.Gossip(k=2), cb.Uniform(), time)
    run.module.federation.data.images[run.module.federation.data.train[0]] = math.inf
    with pytest.warns(UserWarning, match="training of client 0 diverged"):
        run.go(1)
    assert run.rounds[0].metrics["simulated_seconds"] == 12.0


# --- where the numbers come from --------------------------------------------------------------------------------------
def test_drawn_clients_are_log_normal_and_named(start):
    def devices(seed=None, spread=0.5, clients=400):
        time = cb.SimulatedTime(100.0, 50.0, 20.0, latency=0.1, spread=spread, seed=seed)
        start(cb.Gossip(k=0), cb.Uniform(), time, clients=clients)
        return time.devices.numbers

    found, drawn = devices(), set()
    for name, middle in (("speed", 100), ("up", 50), ("down", 20), ("latency", 0.1)):
        logs = (found[name] / middle).log()
        drawn.add(round(float(logs[0]), 6))
        assert abs(float(logs.mean())) < 3 * 0.5 / 20
        assert float(logs.std()) == pytest.approx(0.5, rel=0.15)
    assert len(drawn) == 4
    again, other = devices(seed=0), devices(seed=1)
    for name in found:
        assert torch.equal(found[name], again[name])  # the run's seed is 0
        assert not torch.equal(found[name], other[name])
    assert devices(spread=0, clients=3)["up"].tolist() == [50, 50, 50]


def test_a_trace_is_the_same_as_lists(start, tmp_path):
    file = tmp_path / "devices.csv"
    lines = [f"{i},{','.join(str(DEVICES[name][i]) for name in DEVICES)}" for i in (3, 1, 0, 2, 5, 4)]
    file.write_text("client,speed,up,down,latency\n" + "\n".join(lines) + "\n")
    one, other = (
        start(cb.Gossip(k=2), cb.Uniform(), time).go(2).rounds[-1].metrics["simulated_seconds"]
        for time in (cb.SimulatedTime(**DEVICES), cb.SimulatedTime(trace=str(file)))
    )
    assert one == other


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,speed,up,down\n", "first line of a trace of devices is client,speed,up,down,latency"),
        ("", "first line of a trace"),
        ("0,1,1,1\n", "line 2: a line is a client's number"),
        ("a,1,1,1,0\n", "line 2: a line is a client's number"),
        ("-1,1,1,1,0\n", "line 2: a line is a client's number"),
        ("0,1,1,1,0\n0,1,1,1,0\n", "line 3: client 0 has a line already"),
        ("0,0,1,1,0\n", "line 2: speed=0; it is a number of samples a second, more than 0"),
        ("0,1,nan,1,0\n", "line 2: up=nan; it is a number of bytes a second"),
        ("0,1,1,1,-1\n", "line 2: latency=-1; it is a number of seconds, 0 or more"),
    ],
)
def test_malformed_traces_are_refused(text, sentence, tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text(text if text.startswith("client") or not text else f"client,speed,up,down,latency\n{text}")
    with pytest.raises(UserError, match=sentence):
        cb.SimulatedTime(trace=str(file))


def test_a_trace_of_other_clients_and_long_lists_are_refused(start, tmp_path):
    file = tmp_path / "devices.csv"
    head = "client,speed,up,down,latency\n"
    for clients, sentence in (
        ((0, 1, 3), "has no line for client 2, but data has 4"),
        (range(5), "a line for client 4"),
    ):
        file.write_text(head + "".join(f"{i},1,1,1,0\n" for i in clients))
        with pytest.raises(UserError, match=sentence):
            start(cb.Gossip(k=1), cb.Uniform(), cb.SimulatedTime(trace=str(file)), clients=4)
    with pytest.raises(UserError, match="down lists 2 numbers, but data has 4 clients"):
        start(cb.Gossip(k=1), cb.Uniform(), cb.SimulatedTime(1.0, 1.0, [1.0, 2.0]), clients=4)


# --- files, resumed runs, several processes ---------------------------------------------------------------------------
def monitors():
    return [cb.Fairness(), cb.GraphSparsity(), cb.LinkMessages(), cb.SimulatedTime(50.0, 1e4, 2e4, 0.01, spread=0.5)]


def test_a_resumed_run_has_the_same_numbers_and_files(small_run, tmp_path):
    whole = small_run(6, monitors(), root=tmp_path / "whole").fit()
    part = small_run(3, monitors(), root=tmp_path / "part").fit()
    small_run(6, monitors(), root=tmp_path / "part").fit(str(part.folder / "checkpoints" / "last.ckpt"))
    one, other = read_run(whole.folder), read_run(part.folder)
    assert len(one.metrics["round"]) == 6
    for name in one.metrics:
        if name != "seconds":
            np.testing.assert_array_equal(one.metrics[name], other.metrics[name], err_msg=name)
    assert one.link_messages.keys() == {"receiver", "sender", "models", "parts", "bytes"}
    for name in one.link_messages:
        np.testing.assert_array_equal(one.link_messages[name], other.link_messages[name], err_msg=name)
    assert one.link_messages["bytes"].sum() == pytest.approx(one.metrics["bytes_received"].sum() * 6)


def test_fairness_is_that_of_the_clients_accuracies(small_run):
    found = read_run(small_run(4, [cb.Fairness()], check_val_every_n_epoch=2).fit().folder)
    at = [1, 3]
    assert found.clients["rounds"].tolist() == at
    for name in ("test", "val"):
        accuracies = found.clients[f"{name}_acc"]
        expected = [np.var(row) for row in accuracies]
        np.testing.assert_allclose(found.metrics[f"{name}_acc_variance"][at], expected, rtol=1e-12)
        np.testing.assert_array_equal(found.metrics[f"{name}_acc_best10"][at], accuracies.max(1))
        np.testing.assert_array_equal(found.metrics[f"{name}_acc_worst10"][at], accuracies.min(1))
        assert np.isnan(found.metrics[f"{name}_acc_variance"][[0, 2]]).all()
    np.testing.assert_allclose(np.sqrt(found.metrics["test_acc_variance"]), found.metrics["test_acc_std"], rtol=1e-9)


def test_monitors_change_nothing(small_run, tmp_path):
    bare = small_run(3, root=tmp_path / "bare").fit()
    seen = small_run(3, monitors(), root=tmp_path / "seen").fit()
    assert torch.equal(bare.rows, seen.rows)
    assert not (bare.folder / "link_messages.npz").exists()


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one(tmp_path):
    words = ["--config", "afind", "--data.num_clients", "6", "--trainer.max_rounds", "4", "--trainer.accelerator=cpu"]
    words += ["--dropout", "Bernoulli", "--dropout.rate", "0.3", "--trainer.enable_progress_bar", "false"]
    words += ["--monitors", "[Fairness, GraphSparsity, LinkMessages]", "--monitors+=SimulatedTime"]
    words += ["--monitors.speed=50", "--monitors.up=10000", "--monitors.down=20000", "--monitors.spread=0.5"]
    code = "from dfl_lightning.cli.main import fit; fit()"
    runs = []
    for devices in ("1", "2"):
        (tmp_path / devices).mkdir()
        file = tmp_path / devices / "fit.py"
        file.write_text(f'if __name__ == "__main__":\n    {code}\n')
        command = [sys.executable, str(file), *words, "--trainer.devices", devices]
        done = subprocess.run(command, cwd=tmp_path / devices, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        runs.append(read_run(next((tmp_path / devices).glob("runs/*/*"))))
    one, two = runs
    for name in ("simulated_seconds", "link_density", "link_symmetry", "test_acc_variance", "test_acc_best10"):
        np.testing.assert_array_equal(one.metrics[name], two.metrics[name], err_msg=name)
    for name in one.link_messages:
        np.testing.assert_array_equal(one.link_messages[name], two.link_messages[name])


def test_a_wrong_number_ends_the_command_with_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "gossip", "--monitors+=SimulatedTime", "--monitors.speed=0", "--monitors.up=1"]
    assert command("fit", [*words, "--monitors.down=1"]) == 2
    assert "speed=0; it is a number of samples a second, more than 0" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
