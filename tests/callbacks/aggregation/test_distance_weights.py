"""ClippedGossip and BALANCE against plain loops in numpy, under an attack, and what they do at the edges."""

import math

import networkx as nx
import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import BALANCE, Bernoulli, ClippedGossip, Gossip, Metropolis, SignFlip
from dfl_lightning.utils.errors import UserError

GRAPH = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)])
ADVERSARY, SCALE, ROUNDS = 1, 3.0, 4


@pytest.fixture
def run(start):
    def _run(*policies, **settings):
        return start(
            Gossip("all"), *policies, topology=GRAPH, rounds=ROUNDS, trainer={"precision": "64-true"}, **settings
        )

    return _run


def by_hand(seen, mix):
    """The models after a round: `mix(i, own model, active neighbours, what they sent)` of each active client."""
    before, own = seen.before.numpy(), seen.trained.numpy()
    sent = own.copy()
    sent[ADVERSARY] = before[ADVERSARY] - SCALE * (own[ADVERSARY] - before[ADVERSARY])
    after = own.copy()
    for i in range(6):
        if seen.active[i]:
            others = [j for j in sorted(GRAPH[i]) if seen.active[j]]
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


@pytest.mark.parametrize("aggregation", [lambda: ClippedGossip(1), BALANCE])
def test_an_adversary_moves_honest_models_less_than_under_metropolis(aggregation, run):
    honest = [i for i in range(6) if i != ADVERSARY]

    def moved(make):
        torch.manual_seed(0)
        usual = run(make()).go(ROUNDS).models
        torch.manual_seed(0)
        return float((run(make(), SignFlip(clients=[ADVERSARY], scale=50.0)).go(ROUNDS).models - usual)[honest].norm())

    assert moved(aggregation) < 0.3 * moved(Metropolis)


def test_a_client_without_neighbours_keeps_its_model(start):
    graph = nx.Graph([(0, 1), (1, 2)])
    graph.add_nodes_from(range(4))
    for make in (ClippedGossip, BALANCE):
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
        (lambda: BALANCE(alpha=1.5), r"aggregation.alpha=1.5; the weight of the own model is from 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
