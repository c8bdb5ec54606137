"""Clients that push their models: a heap of single events, numbers by hand, and the runs that they equal."""

from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from pushed import simulate_pushes
from scalar_clients import fit, fit_scalars

from dfl_lightning import UserError, data
from dfl_lightning import callbacks as cb
from dfl_lightning.models import MLP

BYTES = 4


def world(number):
    """Draw a graph, every second one directed, and numbers of few binary digits; a message takes 0 to 3 s."""
    draw = np.random.default_rng([number, 2])
    m = int(draw.integers(2, 12))
    graph = nx.gnp_random_graph(m, 0.5, seed=number, directed=number % 2 == 1)
    cost = draw.choice([1_000_000_000, 1_500_000_000, 2_000_000_000, 3_700_000_000], m)
    targets, latency = draw.integers(-8, 9, m), draw.choice([0, 0.25, 1.5, 2.0], m)
    up, down = draw.choice([4.0, 8.0, np.inf], m), draw.choice([4.0, 16.0, np.inf], m)
    late = np.maximum(latency[:, None], latency[None])
    travel = (1e9 * (BYTES / np.minimum(down[:, None], up[None]) + late)).astype(int)
    devices = {"speed": 1e9 / cost, "up": up, "down": down, "latency": latency}
    return graph, targets, cost, travel, {name: values.tolist() for name, values in devices.items()}


def half_way(targets):
    return lambda i, model: (model + targets[i]) / 2


def senders_of(graph):
    return [sorted(graph.predecessors(i) if graph.is_directed() else graph[i]) for i in range(len(graph))]


# --- one event at a time ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [n if n < 30 else pytest.param(n, marks=pytest.mark.slow) for n in range(130)])
def test_waves_equal_single_events_bit_for_bit(number, tmp_path):
    """The median of numbers with few binary digits is exact, so that no order of summation hides a difference."""
    graph, targets, cost, travel, devices = world(number)
    clock = cb.Asynchronous(**devices, every=1.3, waits=False)
    trainer, module = fit_scalars(
        clock, tmp_path, targets=targets, graph=graph, rounds=5, also=[cb.Gossip(k="all"), cb.Median()]
    )
    models, trainings, sent, _ = simulate_pushes(
        np.zeros(len(cost)),
        cost,
        senders_of(graph),
        half_way(targets),
        lambda i, count, now, before, own, known: (np.median([own, *known.values()]), None),
        int(6.5e9),
        travel,
    )
    assert module.bank.boundary.rows["models"][:, 0].tolist() == models.tolist()
    assert clock.trainings.tolist() == trainings.tolist()
    received = float(trainer.run.metrics["bytes_received"].sum())
    assert received * len(cost) == pytest.approx(BYTES * sent.sum(), rel=1e-12)


def test_weighted_means_equal_those_of_single_events(tmp_path):
    """Votes of models count by their ages, so that these are those of the versions that are mixed."""
    graph, targets, cost, travel, devices = world(5)

    def mix(i, count, now, before, own, known):
        factors = [1, *((1 + age / 1e9) ** -0.5 for age in ages[i, count])]
        return np.average([own, *known.values()], weights=factors), None

    ages = Recorded(senders_of(graph), cost, travel)
    _, module = fit_scalars(
        cb.Asynchronous(**devices, every=1.3, waits=False),
        tmp_path,
        targets=targets,
        graph=graph,
        rounds=9,
        also=[cb.Gossip(k="all"), cb.StalenessWeighted(power=0.5)],
    )
    models, *_ = simulate_pushes(
        np.zeros(len(cost)), cost, senders_of(graph), half_way(targets), mix, int(11.7e9), travel
    )
    np.testing.assert_allclose(module.bank.boundary.rows["models"][:, 0].numpy(), models, rtol=1e-12)


class Recorded:
    """Ages in closed form: a client that trains for c sends at c, 2 c, ..., whatever the others do."""

    def __init__(self, senders, cost, travel):
        self.senders, self.cost, self.travel = senders, cost, travel

    def __getitem__(self, place):
        i, count = place
        now = int(self.cost[i]) * (count + 1)
        last = {j: (now - int(self.travel[i][j])) // int(self.cost[j]) * int(self.cost[j]) for j in self.senders[i]}
        return [now - when for j, when in last.items() if when > 0]


# --- numbers by hand --------------------------------------------------------------------------------------------------
def test_trainings_bytes_and_seconds_are_those_by_hand(tmp_path):
    """Durations of 1, 2 and 4 s, rounds of 4 s: 4, 2 and 1 trainings, and as many messages to 1, 2 and 1 others."""
    clock = cb.Asynchronous(speed=[1.0, 0.5, 0.25], latency=0.5, every=4, waits=False)
    trainer, _ = fit_scalars(
        clock,
        tmp_path,
        targets=[1, 2, 3],
        graph=nx.path_graph(3),
        rounds=3,
        also=[cb.Gossip(k=1), cb.Uniform(), cb.LinkMessages()],
    )
    found = trainer.run.metrics
    assert clock.trainings.tolist() == [12, 6, 3]
    assert clock.finish.tolist() == [13_000_000_000, 14_000_000_000, 16_000_000_000]  # nobody waits
    assert found["simulated_seconds"].tolist() == [4, 8, 12]
    np.testing.assert_allclose(found["trainings"], [7 / 3, 14 / 3, 7])
    np.testing.assert_allclose(found["models_received"], [(4 * 1 + 2 * 2 + 1 * 1) / 3] * 3)
    np.testing.assert_allclose(found["bytes_received"], BYTES * found["models_received"])
    assert found["probes_received"].tolist() == [0, 0, 0]
    said = clock.describe(trainer.lightning_module.federation)
    assert said.endswith("; clients push, and the last 2 models of each are kept")


def test_models_and_staleness_are_those_by_hand(tmp_path):
    """Client 0 takes 1 s, client 1 takes 2 s, a message half a second; targets 8 and 24.

    At 1 s client 0 has 4. At 2 s it has 6, and client 1 has 12 and mixes the 4 of 1 s: 8. At 3 s client 0 has 7 and
    mixes the 12 of 2 s: 9.5. At 4 s it has 8.75 and mixes the 12 again: 10.375; client 1 has 16 and mixes the 7 of 3 s.
    """
    clock = cb.Asynchronous(speed=[1.0, 0.5], latency=0.5, every=4, waits=False)
    trainer, module = fit_scalars(
        clock, tmp_path, targets=[8, 24], graph=nx.path_graph(2), rounds=1, also=[cb.Gossip(k="all"), cb.Uniform()]
    )
    assert module.bank.boundary.rows["models"][:, 0].tolist() == [10.375, 11.5]
    # Waves at 2, 3 and 4 s, of 2, 1 and 2 clients, with ages of 1 s, 1 s, and 2 s and 1 s.
    assert trainer.run.metrics["staleness"].tolist() == [pytest.approx((2 * 1 + 1 * 1 + 2 * 1.5) / 5)]


def test_a_slow_message_is_overtaken_by_none(tmp_path):
    """A message takes 3 s: the client that trains for 1 s has then sent 3 more, and 4 of its models are kept."""
    clock = cb.Asynchronous(speed=[1.0, 0.25], latency=3.0, every=8, waits=False)
    _, module = fit_scalars(
        clock, tmp_path, targets=[8, 0], graph=nx.path_graph(2), rounds=1, also=[cb.Gossip(k="all"), cb.Uniform()]
    )
    assert sorted(name for name in module.bank.boundary.rows if name.startswith("published")) == [
        "published",
        "published_2",
        "published_3",
        "published_4",
    ]
    # Client 1 mixes at 4 s the model that client 0 sent at 1 s, 4, and at 8 s that of 5 s: 8 - 8 / 2^5 = 7.75, since
    # the first model of client 1 reaches client 0 at 7 s only.
    assert module.bank.boundary.rows["models"][1, 0].item() == (2 / 2 + 7.75) / 2


# --- the runs that it equals ------------------------------------------------------------------------------------------
def digits():
    return data.Digits(num_clients=8, samples_per_client=24, val_fraction=0.2)


def weighted():
    graph = nx.random_regular_graph(4, 8, seed=1)
    for i, j in graph.edges:
        graph.edges[i, j]["weight"] = 1 + i + j
    return graph


def of_digits(clock, folder, *, also, graph="complete", rounds=3, **trainer):
    return fit(
        clock, folder, datamodule=digits(), graph=graph, network=MLP(hidden=[6]), rounds=rounds, also=also, **trainer
    )


AVERAGES = [
    cb.Uniform,
    cb.SampleWeighted,
    cb.Metropolis,
    cb.FromTopology,
    cb.Median,
    partial(cb.TrimmedMean, 0.3),
]


@pytest.mark.parametrize("aggregation", AVERAGES)
def test_equal_speeds_and_free_messages_are_the_synchronous_run(aggregation, tmp_path):
    rows = []
    for clock in (None, cb.Asynchronous(speed=50.0, waits=False)):
        also = [cb.Gossip(k=3), aggregation(), cb.GaussianNoise(sigma=0.01)]
        _, module = of_digits(clock, tmp_path / str(len(rows)), also=also, graph=weighted())
        rows.append(module.bank.boundary.rows["models"])
    assert torch.equal(*rows)


POLICIES = {
    "gossip": lambda: [cb.Gossip(k=2), cb.StalenessWeighted(), cb.QSGD()],
    "Boltzmann": lambda: [cb.Gossip(k=2), cb.Boltzmann()],
    "AFIND+": lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()],
    "PENS": lambda: [cb.PENS(sampled=3, top=2, k=2, stage_one=2), cb.Uniform()],
    "FedFomo": lambda: [cb.FedFomo(k=2), cb.FirstOrder()],
    "pFedGraph": lambda: [cb.Gossip(k=3), cb.SimilarityWeighted()],
    "Krum": lambda: [cb.Gossip(k=4), cb.MultiKrum(adversaries=1, kept=2)],
    "median": lambda: [cb.Gossip(k=3), cb.GeometricMedian()],
    "clipped": lambda: [cb.Gossip(k=3), cb.ClippedGossip()],
}


@pytest.mark.parametrize("name", POLICIES)
def test_free_messages_are_the_run_that_fetches(name, tmp_path):
    rows = {}
    for waits in (True, False):
        clock = cb.Asynchronous(speed=50.0, spread=0.6, waits=waits)
        _, module = of_digits(clock, tmp_path / str(waits), also=POLICIES[name]())
        rows[waits] = module.bank.boundary.rows
    assert rows[True].keys() == rows[False].keys()
    for name, expected in rows[True].items():
        assert torch.equal(rows[False][name], expected), name


# --- stops ------------------------------------------------------------------------------------------------------------
class StopInAWave(cb.Monitor):
    """Raises in the second wave of a round."""

    def __init__(self, index):
        self.index = index

    def on_mixed(self, round):
        if round.index == self.index and round.earlier:
            raise RuntimeError("stopped inside a wave")


def slow_messages(folder, also=(), **trainer):
    clock = cb.Asynchronous(speed=100.0, spread=0.4, up=1e5, latency=0.09, waits=False)
    return of_digits(clock, folder, also=[cb.Gossip(k=3), cb.Uniform(), *also], rounds=6, **trainer)


def test_run_stopped_inside_a_wave_resumes_with_the_same_bits(tmp_path):
    _, whole = slow_messages(tmp_path / "whole")
    assert "published_3" in whole.bank.boundary.rows
    with pytest.raises(RuntimeError, match="stopped inside a wave"):
        slow_messages(tmp_path / "cut", also=[StopInAWave(3)], enable_checkpointing=True, checkpoint_every=1)
    (folder,) = (tmp_path / "cut").glob("*/*/metrics.csv")
    _, resumed = slow_messages(tmp_path / "cut", enable_checkpointing=True, ckpt_path=folder.parent)
    assert whole.bank.boundary.rows.keys() == resumed.bank.boundary.rows.keys()
    for name, rows in whole.bank.boundary.rows.items():
        assert torch.equal(resumed.bank.boundary.rows[name], rows), name


# --- what is refused --------------------------------------------------------------------------------------------------
def three(folder, also=None, graph=None, waits=False, **clock):
    clock = cb.Asynchronous(**{"speed": 1.0, **clock}, waits=waits)
    also = [cb.Gossip(k="all"), cb.Uniform()] if also is None else also
    graph = nx.complete_graph(3) if graph is None else graph
    trainer, _ = fit_scalars(clock, folder, targets=[1, 2, 3], graph=graph, rounds=3, also=also)
    return len(trainer.run.metrics["trainings"])


LATE = {"latency": [0.0, 0.0, 3.1], "speed": [2.0, 1.0, 1.0]}
SENTENCE = (
    r"a model of client 0 takes 3.1 s to reach client 2, and client 0 sends one every 0.5 s, so that 8 of them would "
    r"have to be kept, and at most 4 are; raise up and down, lower latency or speed, or use --clock.waits true"
)
PAIRS = [cb.Gossip(k=1), cb.Pairwise()]
TWICE = [cb.Gossip(k="all"), cb.Metropolis(steps=2)]
REFUSED = {
    "lower latency": (LATE, SENTENCE, {**LATE, "latency": 1.5}),
    "lower speed": (LATE, SENTENCE, {**LATE, "speed": 0.9}),
    "wait": (LATE, SENTENCE, {**LATE, "waits": True}),
    "raise up": (
        {"up": [1e9, 1.0, 1e9]},
        r"a model of client 1 takes 4 s to reach client \d",
        {"up": 4.0},
    ),
    "endless": ({"latency": 1e12}, "sending takes client 0 1e.12 s", {"latency": 1.0}),
    "pairs": ({"also": PAIRS}, "Pairwise mixes models as they are when a client fin", {"also": PAIRS, "waits": True}),
    "changing links": (
        *({"graph": "one_peer"}, "the links of the topology change from round to round"),
        {"graph": nx.path_graph(3)},
    ),
    "steps": ({"also": TWICE}, "steps=2 mixes again", {"also": [cb.Gossip(k="all"), cb.Metropolis()]}),
    "steps, if clients wait": (
        *({"also": TWICE, "waits": True}, "steps=2 mixes again"),
        {"also": [cb.Gossip(k="all"), cb.Metropolis()], "waits": True},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_works_with_the_remedy(name, tmp_path):
    bad, sentence, good = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        three(tmp_path / "refused", **bad)
    assert three(tmp_path / "remedied", **good) == 3


class Asks(cb.Gossip):
    def on_select(self, round):
        round.charge_message("question", round.candidates, 8)
        super().on_select(round)


class Grows(cb.GaussianNoise):
    """Messages that are longer in each call."""

    calls = 0

    def bytes_of(self, width):
        self.calls += 1
        return 8 * self.calls


UNSENT = [
    ([Asks(k="all"), cb.Uniform()], "asks other clients for the message 'question', and clients that push send"),
    ([cb.Gossip(k="all"), cb.Uniform(), Grows(sigma=0.1)], r"the message of client 0 has \d+ bytes, and \d+ before"),
]


@pytest.mark.parametrize(("policies", "sentence"), UNSENT)
def test_other_messages_than_those_announced_are_refused(policies, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        three(tmp_path / "refused", also=policies)
    assert three(tmp_path / "remedied", also=policies, waits=True) == 3


def test_messages_have_the_bytes_that_policies_set(tmp_path):
    """If all clients finish together and send to all neighbours, they send what these would fetch."""
    received = {}
    for waits in (True, False):
        clock = cb.Asynchronous(speed=50.0, waits=waits)
        also = [cb.Gossip(k="all"), cb.Uniform(), cb.QSGD()]
        trainer, _ = of_digits(clock, tmp_path / str(waits), also=also, rounds=1)
        received[waits] = trainer.run.metrics["bytes_received"].tolist()
    assert received[False] == received[True]
