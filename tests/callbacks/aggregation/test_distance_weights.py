"""Aggregations by distances against the references of their cases, under an attack, and what they do at the edges."""

import importlib
import re

import networkx as nx
import numpy as np
import pytest
import scipy.optimize
import torch

from dfl_lightning.callbacks import (
    BALANCE,
    Bernoulli,
    ClippedGossip,
    GeometricMedian,
    Gossip,
    Krum,
    Metropolis,
    MultiKrum,
    SignFlip,
    Uniform,
)
from dfl_lightning.functional import Neighbourhoods, geometric_median_weights, krum_weights, pairs_received
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError

GRAPH = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)])
ADVERSARY, SCALE, ROUNDS = 1, 3.0, 4


@pytest.fixture
def run(start):
    def _run(*policies, topology=GRAPH, **settings):
        return start(
            Gossip("all"), *policies, topology=topology, rounds=ROUNDS, trainer={"precision": "64-true"}, **settings
        )

    return _run


CIRCULANT = nx.circulant_graph(6, [1, 2])
METHODS = [  # the aggregation, its reference with options, and the run's own settings
    ("clipped_gossip", lambda: ClippedGossip(1), {"outliers": 1, "radius": 0.0}, {}),
    ("clipped_gossip", lambda: ClippedGossip(0), {"outliers": 0, "radius": 0.0}, {}),
    ("clipped_gossip", lambda: ClippedGossip(1, 0.05), {"outliers": 1, "radius": 0.05}, {}),
    ("balance", lambda: BALANCE(0.3, 2.0), {"gamma": 0.3, "kappa": 2.0, "alpha": 0.5}, {}),
    ("balance", lambda: BALANCE(1.2, 2.0, 0.25), {"gamma": 1.2, "kappa": 2.0, "alpha": 0.25}, {"init": "independent"}),
    ("balance", lambda: BALANCE(1e-6, 2.0), {"gamma": 1e-6, "kappa": 2.0, "alpha": 0.5}, {}),
    ("krum", lambda: Krum(1), {"adversaries": 1, "kept": 1}, {"topology": CIRCULANT}),
    ("krum", lambda: MultiKrum(0, 2), {"adversaries": 0, "kept": 2}, {"topology": CIRCULANT}),
    ("krum", lambda: MultiKrum(1), {"adversaries": 1, "kept": 0}, {"topology": CIRCULANT}),
    ("krum", lambda: Krum(0, False), {"adversaries": 0, "kept": 1, "include_self": False}, {"topology": CIRCULANT}),
    ("geometric_median", lambda: GeometricMedian(1e-6, 20), {"smoothing": 1e-6, "iterations": 20}, {}),
    ("geometric_median", lambda: GeometricMedian(0.05, 20), {"smoothing": 0.05, "iterations": 20}, {}),
]


@pytest.mark.parametrize(("name", "make", "options", "settings"), METHODS, ids=[str(m[2]) for m in METHODS])
def test_rounds_under_attack_are_those_of_the_reference(name, make, options, settings, run):
    """The reference is plain numpy, one client after the other; some drop out, and some have few neighbours."""
    reference = importlib.import_module(f"plain.{name}").METHOD.function
    done = run(make(), SignFlip(clients=[ADVERSARY], scale=SCALE), Bernoulli(0.2), **settings).go(ROUNDS)
    graph = nx.to_numpy_array(settings.get("topology", GRAPH), nodelist=range(6)) > 0
    some_left_out = False
    for t, seen in enumerate(done.rounds):
        before, trained, active = seen.before.numpy(), seen.trained.numpy(), seen.active.numpy()
        sent = trained.copy()
        sent[ADVERSARY] = before[ADVERSARY] - SCALE * (trained[ADVERSARY] - before[ADVERSARY])
        time = {"round": t, "rounds_of_run": ROUNDS} if name == "balance" else {}
        expected = reference(before, trained, sent, graph, active, **options, **time)
        np.testing.assert_allclose(seen.after.numpy(), expected["models"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(seen.weights.numpy(), expected["weights"], rtol=0, atol=1e-9)
        received = graph & active & active[:, None]
        used = (expected["weights"] > 0) & received
        some_left_out |= used.sum() < received.sum()
        for metric in {"accepted", "kept"} & set(seen.metrics):
            assert seen.metrics[metric] == pytest.approx(used.sum() / received.sum())
    assert some_left_out == (name in ("balance", "krum"))


def test_the_geometric_median_has_the_least_sum_of_distances():
    torch.manual_seed(1)
    points, n = torch.randn(9, 3, dtype=torch.float64) * torch.arange(1, 10)[:, None], 9
    voters = Links.of(torch.zeros(n, dtype=torch.long), torch.arange(n), n)
    near = neighbourhoods(points, voters)
    median = (geometric_median_weights(near, torch.ones(n), iterations=200) @ points).numpy()
    best = scipy.optimize.minimize(
        lambda v: np.linalg.norm(points.numpy() - v, axis=1).sum(), points.mean(0).numpy(), tol=1e-14
    )
    np.testing.assert_allclose(median, best.x, atol=1e-5)


def neighbourhoods(points, voters):
    pairs = pairs_received(voters)
    own = (points[voters.receivers] - points[voters.senders]).norm(dim=1)
    return Neighbourhoods(voters, own, pairs, (points[pairs.receivers] - points[pairs.senders]).norm(dim=1))


def test_overflowing_distances_are_far_and_ties_take_lower_ids():
    voters = Links.of(torch.zeros(5, dtype=torch.long), torch.arange(5), 5)
    near = neighbourhoods(torch.tensor([[0.0], [1.0], [1.0], [2.0], [1e200]], dtype=torch.float64), voters)
    assert krum_weights(near, 1).tolist() == [0, 1, 0, 0, 0]
    assert geometric_median_weights(near, torch.ones(5))[4] < 1e-12
    assert krum_weights(near, 2).tolist() == [0] * 5  # five models are too few for two adversaries


@pytest.mark.parametrize(
    ("aggregation", "usual"),
    [
        (lambda: ClippedGossip(1), Metropolis),
        (BALANCE, Metropolis),
        (lambda: Krum(0), Uniform),
        (lambda: MultiKrum(0, 2), Uniform),
        (GeometricMedian, Uniform),
    ],
)
def test_an_adversary_moves_honest_models_less_than_under_plain_averages(aggregation, usual, run):
    honest = [i for i in range(6) if i != ADVERSARY]

    def moved(make):
        torch.manual_seed(0)
        usual = run(make()).go(ROUNDS).models
        torch.manual_seed(0)
        return float((run(make(), SignFlip(clients=[ADVERSARY], scale=50.0)).go(ROUNDS).models - usual)[honest].norm())

    assert moved(aggregation) < 0.3 * moved(usual)


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (
            Krum,
            {},
            "aggregation.adversaries=1 needs 5 models to choose from (2 f + 3), and client 0 has 4 at most, its own "
            "included; lower it, or take a graph or a selection with more neighbours",
        ),
        (lambda: MultiKrum(1, include_self=False), {"topology": "complete", "clients": 5}, "client 0 has 4 at most; "),
        (lambda: Krum(1), {"topology": {"generator": "server"}, "clients": 4}, "the server has 4 at most; "),
        (lambda: Krum(1), {"topology": "complete", "k": 3}, "client 0 has 4 at most, its own included"),
    ],
)
def test_krum_refuses_graphs_with_too_few_models(make, settings, sentence, start):
    k = settings.get("k", "all")
    with pytest.raises(UserError, match=re.escape(sentence)):
        start(Gossip(k), make(), **{"topology": GRAPH, **{key: settings[key] for key in settings if key != "k"}})


def test_krum_accepts_redrawn_graphs_that_may_have_enough_models(start):
    redrawn = {"generator": "erdos_renyi_graph", "args": {"p": 0.2}, "every": 1}
    start(Gossip("all"), Krum(1), topology=redrawn, clients=8)


def test_a_client_without_neighbours_keeps_its_model(start):
    graph = nx.Graph([(0, 1), (1, 2), (0, 2)])
    graph.add_nodes_from(range(4))
    for make in (ClippedGossip, BALANCE, lambda: Krum(0), GeometricMedian):
        seen = start(Gossip("all"), make(), topology=graph, clients=4, rounds=2).go(1).rounds[0]
        assert torch.equal(seen.after[3], seen.trained[3])
        assert torch.allclose(seen.weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_server_charges_every_upload_that_it_compares(start, trace):
    up = ["1 1 1 1 1 1 1 0", "1 1 1 0 1 1 1 0"]
    for make in (Uniform, lambda: Krum(1), lambda: MultiKrum(1), GeometricMedian):
        server = start(Gossip("all"), make(), trace(*up), topology={"generator": "server"}, clients=8, rounds=2)
        received = [round.metrics["models_received"] for round in server.go(2).rounds]
        assert received == [2 * 7 / 8, 2 * 6 / 8]
