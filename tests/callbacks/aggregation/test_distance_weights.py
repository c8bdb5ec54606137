"""Aggregations by distances against plain loops in numpy, under an attack, and what they do at the edges."""

import math
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


def by_hand(seen, mix, graph=GRAPH):
    """The models after a round: `mix(i, own model, active neighbours, what they sent)` of each active client."""
    before, own = seen.before.numpy(), seen.trained.numpy()
    sent = own.copy()
    sent[ADVERSARY] = before[ADVERSARY] - SCALE * (own[ADVERSARY] - before[ADVERSARY])
    after = own.copy()
    for i in range(6):
        if seen.active[i]:
            others = [j for j in sorted(graph[i]) if seen.active[j]]
            after[i] = mix(i, own[i], others, [sent[j] for j in others])
    return after


@pytest.mark.parametrize(("outliers", "radius"), [(1, None), (0, None), (2, None), (1, 0.05)])
def test_clipped_gossip_is_the_papers_sum(outliers, radius, run):
    done = run(ClippedGossip(outliers, radius), SignFlip(clients=[ADVERSARY], scale=SCALE), Bernoulli(0.2)).go(ROUNDS)
    clipped = []
    for seen in done.rounds:

        def mix(i, own, others, received, active=seen.active):
            degree = {k: sum(bool(active[j]) for j in GRAPH[k]) for k in [i, *others]}
            distances = [math.dist(x, own) for x in received]
            tau = radius or (sorted(distances)[max(0, len(others) - 1 - outliers)] if others else 0.0)
            new = own.copy()
            for j, x, far in zip(others, received, distances, strict=True):
                new += min(1.0, tau / far) * (x - own) / (1 + max(degree[i], degree[j]))
            clipped.append(sum(far > tau for far in distances))
            return new

        np.testing.assert_allclose(seen.after.numpy(), by_hand(seen, mix), rtol=0, atol=1e-12)
    assert (sum(clipped) > 0) == bool(outliers or radius)


@pytest.mark.parametrize(("gamma", "alpha"), [(0.3, 0.5), (1.2, 0.25), (1e-6, 0.5)])
def test_balance_is_the_papers_two_steps(gamma, alpha, run):
    policies = (BALANCE(gamma, 2.0, alpha), SignFlip(clients=[ADVERSARY], scale=SCALE), Bernoulli(0.2))
    done = run(*policies, init="independent" if gamma > 1 else "common").go(ROUNDS)
    for t, seen in enumerate(done.rounds):
        counts = [0, 0]

        def mix(i, own, others, received, t=t, counts=counts):
            limit = gamma * math.exp(-2.0 * t / ROUNDS) * math.sqrt(float(own @ own))
            near = [x for x in received if math.dist(x, own) <= limit]
            counts[0] += len(near)
            counts[1] += len(received)
            return alpha * own + (1 - alpha) * sum(near) / len(near) if near else own

        np.testing.assert_allclose(seen.after.numpy(), by_hand(seen, mix), rtol=0, atol=1e-12)
        assert not counts[1] or seen.metrics["accepted"] == pytest.approx(counts[0] / counts[1])
        assert gamma > 1e-3 or not counts[0]


def krum_by_hand(models, f, kept):
    """The mean of the `kept` models with the lowest sums of squared distances to their n - f - 2 nearest others."""
    n = len(models)
    scores = []
    for i in range(n):
        others = sorted(math.dist(models[i], models[j]) ** 2 for j in range(n) if j != i)
        scores.append(sum(others[: n - f - 2]))
    best = sorted(range(n), key=lambda i: scores[i])[: n - f if kept is None else kept]
    return sum(models[i] for i in best) / len(best), best


@pytest.mark.parametrize(("f", "kept", "include_self"), [(1, 1, True), (0, 2, True), (1, None, True), (0, 1, False)])
def test_krum_is_the_papers_choice_and_keeps_the_own_model_among_too_few(f, kept, include_self, run):
    make = Krum(f, include_self) if kept == 1 else MultiKrum(f, kept, include_self)
    graph = nx.circulant_graph(6, [1, 2])
    done = run(make, SignFlip(clients=[ADVERSARY], scale=SCALE), Bernoulli(0.2), topology=graph).go(ROUNDS)
    kept_own = 0
    for seen in done.rounds:
        received_of, chosen = [0], [0]

        def mix(i, own, others, received, received_of=received_of, chosen=chosen):
            models = sorted(
                [*zip(others, received, strict=True), *([(i, own)] if include_self else [])], key=lambda x: x[0]
            )
            received_of[0] += len(others)
            if len(models) < 2 * f + 3:
                return own
            mean, best = krum_by_hand([x for _, x in models], f, kept)
            chosen[0] += sum(models[k][0] != i for k in best)
            return mean

        after = by_hand(seen, mix, graph)
        kept_own += int((after == seen.trained.numpy()).all(1)[seen.active.numpy()].sum())
        np.testing.assert_allclose(seen.after.numpy(), after, rtol=0, atol=1e-12)
        assert seen.metrics["kept"] == pytest.approx(chosen[0] / received_of[0])
    assert kept_own or not f


@pytest.mark.parametrize("smoothing", [1e-6, 0.05])
def test_the_geometric_median_is_the_papers_iteration(smoothing, run):
    policies = (GeometricMedian(smoothing, 20), SignFlip(clients=[ADVERSARY], scale=SCALE), Bernoulli(0.2))

    def mix(i, own, others, received):
        models = np.stack([own, *received])
        median = models.mean(0)
        for _ in range(20):
            beta = 1 / np.maximum(smoothing, np.linalg.norm(models - median, axis=1))
            median = beta @ models / beta.sum()
        return median

    for seen in run(*policies).go(ROUNDS).rounds:
        np.testing.assert_allclose(seen.after.numpy(), by_hand(seen, mix), rtol=0, atol=1e-9)


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


def test_distances_that_overflow_are_far_and_equal_scores_go_to_the_lower_id():
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
def test_a_graph_in_which_krum_never_has_enough_models_is_refused(make, settings, sentence, start):
    k = settings.get("k", "all")
    with pytest.raises(UserError, match=re.escape(sentence)):
        start(Gossip(k), make(), **{"topology": GRAPH, **{key: settings[key] for key in settings if key != "k"}})


def test_a_graph_that_is_drawn_anew_may_have_enough_models_later(start):
    redrawn = {"generator": "erdos_renyi_graph", "args": {"p": 0.2}, "every": 1}
    start(Gossip("all"), Krum(1), topology=redrawn, clients=8)


def test_a_client_without_neighbours_keeps_its_model(start):
    graph = nx.Graph([(0, 1), (1, 2), (0, 2)])
    graph.add_nodes_from(range(4))
    for make in (ClippedGossip, BALANCE, lambda: Krum(0), GeometricMedian):
        seen = start(Gossip("all"), make(), topology=graph, clients=4, rounds=2).go(1).rounds[0]
        assert torch.equal(seen.after[3], seen.trained[3])
        assert torch.allclose(seen.weights.sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ClippedGossip(-1), r"aggregation.outliers=-1; it is a number of neighbours"),
        (lambda: ClippedGossip(radius=0.0), r"aggregation.radius=0.0; it is a distance above 0"),
        (lambda: BALANCE(gamma=0.0), r"aggregation.gamma=0.0; it is a distance above 0"),
        (lambda: BALANCE(kappa=-1.0), r"aggregation.kappa=-1.0; it must be 0 or more"),
        (lambda: Krum(-1), r"aggregation.adversaries=-1; it is a number of models, 0 or more"),
        (lambda: MultiKrum(1, 0), r"aggregation.kept=0; it is a number of models, 1 or more"),
        (lambda: GeometricMedian(0.0), r"aggregation.smoothing=0.0; it is a distance above 0"),
        (lambda: GeometricMedian(iterations=0), r"aggregation.iterations=0; the algorithm takes 1 step or more"),
        (lambda: BALANCE(alpha=1.5), r"aggregation.alpha=1.5; the weight of the own model is from 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
