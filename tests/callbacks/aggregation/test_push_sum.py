"""Push-sum against products of numpy's matrices and the paper's loop; several mixing steps against powers."""

import copy
import functools

import networkx as nx
import numpy as np
import pytest
import torch
from tester.rounds import Run, toy_data
from torch import nn
from torch.nn.functional import cross_entropy

from dfl_lightning.callbacks import FDMS, Bernoulli, Gossip, Metropolis, PushSum, Stale, TopK, Uniform
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES, RATE = [6, 3, 9, 2, 5], 0.2


def directed():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])
    graph.add_nodes_from(range(5))
    return graph


def drained():
    """Build a graph where clients 1, 2 and 3 send to the pair of 0 and 4."""
    return nx.DiGraph([(4, 0), (0, 4), *((i, j) for i in (1, 2, 3) for j in (0, 4))])


def start(*policies, topology=None, lr=RATE, **model):
    settings = {
        "network": MLP(hidden=[4]),
        "local_epochs": 1,
        "batch_size": 100,
        "optimizer": functools.partial(torch.optim.SGD, lr=lr),
        **model,
    }
    topology = directed() if topology is None else topology
    return Run(policies, 5, 200, topology, toy_data(sizes=SIZES), settings, {"precision": "64-true", "engine": "loop"})


def column_stochastic(graph, up):
    """Build the matrix P[i, j], the share that j gives to i; edges of networkx lead from sender to receiver."""
    p = np.zeros((5, 5))
    for j in range(5):
        if up[j]:
            receivers = [i for i in graph.successors(j) if up[i]]
            p[[*receivers, j], j] = 1 / (1 + len(receivers))
        else:
            p[j, j] = 1
    return p


def descended(run, number, owner, z):
    module = copy.deepcopy(run.module.network).double()
    nn.utils.vector_to_parameters(torch.from_numpy(z).clone(), module.parameters())
    samples = run.data.train[owner]
    order = drawn_order(len(samples), 0, "local", number, owner, 0)
    x, y = run.data.batch(samples[order], dtype=torch.float64)
    grads = torch.autograd.grad(cross_entropy(module(x), y), list(module.parameters()))
    return RATE * torch.cat([g.flatten() for g in grads]).numpy()


def test_each_round_is_stochastic_gradient_push():
    run, graph = start(Gossip(k="all"), PushSum(), Bernoulli(0.3)), directed()
    x, y, down = run.models.numpy().copy(), np.ones(5), 0
    for number in range(8):
        run.go(1)
        up = run.rounds[-1].participants.tolist()
        down += up.count(False)
        z = x / y[:, None]
        half = np.stack([x[j] - descended(run, number, j, z[j]) if up[j] else x[j] for j in range(5)])
        p = column_stochastic(graph, up)
        x, y = p @ half, p @ y
        np.testing.assert_allclose(run.models.numpy(), x / y[:, None], rtol=0, atol=1e-9)
    assert down
    assert abs(y.sum() - 5) < 1e-12
    assert np.abs(y - 1).max() > 0.1


def test_push_sum_reaches_the_mean_and_uniform_does_not():
    """On a directed graph in which some are received by more than others."""

    def spread(aggregation):
        run = start(Gossip(k="all"), aggregation, lr=0.0, init="independent")
        mean = run.models.mean(0)
        run.go(80)
        return float((run.models - run.models[0]).abs().max()), float((run.models.mean(0) - mean).abs().max())

    apart, off = spread(PushSum())
    assert apart < 1e-9
    assert off < 1e-9
    apart, off = spread(Uniform())
    assert apart < 1e-9
    assert off > 1e-3


def test_push_sum_number_is_charged_with_each_model():
    metrics = start(Gossip(k="all"), PushSum()).go(2).rounds[-1].metrics
    width = 5 * 4 + 4 + 4 * 3 + 3
    assert metrics["models_received"] == 7 / 5
    assert metrics["messages_received"] == 7 / 5
    assert metrics["bytes_received"] == pytest.approx(7 / 5 * (4 * width + 4))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_several_steps_mix_by_a_matrix_power_and_are_charged(steps):
    graph = nx.cycle_graph(5)
    run = start(Gossip(k="all"), Metropolis(steps), topology=graph, lr=0.0, init="independent")
    before = run.models.clone()
    run.go(1)
    w = np.full((5, 5), 0.0)
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / 3
    w += np.eye(5) / 3
    expected = np.linalg.matrix_power(w, steps) @ before.numpy()
    np.testing.assert_allclose(run.models.numpy(), expected, rtol=0, atol=1e-12)
    metrics = run.rounds[0].metrics
    assert (metrics["models_received"], metrics["probes_received"]) == (2 * steps, 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Metropolis(0), r"aggregation\.steps=0; models are mixed 1 time or more"),
        (lambda: start(Gossip(k="all"), Metropolis(2), FDMS(), Bernoulli(0.2)), r"steps=2 sends .* FDMS neither"),
        (lambda: start(Gossip(k="all"), Metropolis(2), TopK()), r"steps=2 sends models .* TopK neither"),
        (lambda: start(Gossip(k="all"), PushSum(), TopK()), r"PushSum sends shares of numerators, which no Outgoing"),
        (lambda: start(Gossip(k="all"), PushSum(), Stale(), Bernoulli(0.2)), r"PushSum shares out the models"),
        (lambda: start(Gossip(k="all"), PushSum(), topology=drained()), r"lead away from client 1 .* none leads back"),
    ],
)
def test_incompatible_settings_are_refused_before_training(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


class Greedy(PushSum):
    """Gives each receiver everything."""

    def on_weigh(self, round):
        round.weights = (round.votes > 0).double()


def test_weights_of_a_sender_must_sum_to_1():
    with pytest.raises(
        UserError,
        match=r"Greedy wrote weights whose sum over the receivers of sender 0 is 4; the weights of each sender",
    ):
        start(Gossip(k="all"), Greedy()).go(1)


def test_vanished_push_sum_number_ends_the_run(tmp_path):
    """A graph for one round hides before training that the next one is drained."""
    for make in (directed, drained):
        nx.write_graphml(make(), tmp_path / f"{make.__name__}.graphml")
    whole, rest = ({"graph": str(tmp_path / f"{name}.graphml")} for name in ("directed", "drained"))
    run = start(Gossip(k="all"), PushSum(), topology={"sequence": [{**whole, "rounds": 1}, rest]}, lr=0.0)
    with pytest.raises(UserError, match=r"round \d+: aggregation PushSum: the push-sum number of client \d has fallen"):
        run.go(199)
    p = column_stochastic(drained(), [True] * 5)
    y = np.linalg.matrix_power(p, len(run.rounds) - 1) @ column_stochastic(directed(), [True] * 5) @ np.ones(5)
    assert y.min() > np.finfo(float).eps > (p @ y).min()
