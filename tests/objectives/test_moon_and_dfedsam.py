"""MOON and DFedSAM over whole rounds with clients that drop out, against plain loops; the steps alone are compared in
`test_written_by_users.py`."""

import copy

import logistic
import networkx as nx
import numpy as np
import pytest
import torch
from logistic import GRAPH, RATE, metropolis
from plain.dfedsam import dfedsam
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, SampleWeighted
from dfl_lightning.objectives import MOON, DFedSAM, Plain


def start(rule, *others, steps=1, **settings):
    return logistic.start(Gossip(k="all"), Metropolis(steps=steps), *others, objective=rule, **settings)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_dfedsam_with_several_mixing_steps_agrees_with_the_papers_loop(engine):
    run, was_down = start(DFedSAM(0.3), Bernoulli(0.3), steps=3, engine=engine), 0
    rows, links = run.models.numpy().copy(), nx.to_numpy_array(GRAPH, nodelist=range(6)) > 0
    for t in range(4):
        up = run.go(1).rounds[-1].participants.numpy()
        was_down += (~up).sum()
        xs, ys = zip(*(zip(*logistic.batches(run, i, t), strict=True) for i in range(6)), strict=True)
        rows = dfedsam([5, 3], rows, xs, ys, links, up, RATE, 0.3, 3)["models"]
        np.testing.assert_allclose(run.models.numpy(), rows, rtol=0, atol=1e-12)
    assert was_down


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def module(row):
    made = network().double()
    nn.utils.vector_to_parameters(row.clone(), made.parameters())
    return made


def row(made):
    return nn.utils.parameters_to_vector(made.parameters()).detach().clone()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_moon_agrees_with_plain_modules(engine):
    run, was_down = start(MOON(2.0, 0.3), Bernoulli(0.4), engine=engine, network=network()), 0
    rows, previous = run.models.clone(), run.models.clone()
    for t in range(5):
        up = run.go(1).rounds[-1].participants.tolist()
        was_down += up.count(False)
        for i in (i for i in range(6) if up[i]):
            w = module(rows[i])
            received, earlier = copy.deepcopy(w), module(previous[i])
            for x, y in logistic.batches(run, i, t):
                x, y = torch.from_numpy(x), torch.from_numpy(y)
                z = w[:3](x)
                near = torch.exp(cosine_similarity(z, received[:3](x).detach()) / 0.3)
                far = torch.exp(cosine_similarity(z, earlier[:3](x).detach()) / 0.3)
                loss = cross_entropy(w(x), y) - 2.0 * torch.log(near / (near + far)).mean()
                with torch.no_grad():
                    for p, g in zip(w.parameters(), torch.autograd.grad(loss, list(w.parameters())), strict=True):
                        p -= RATE * g
            rows[i] = previous[i] = row(w)
        rows = torch.from_numpy(metropolis(up)) @ rows
        torch.testing.assert_close(run.models, rows, rtol=0, atol=1e-9)
        torch.testing.assert_close(run.rows("previous"), previous, rtol=0, atol=1e-9)
    assert was_down


def test_with_a_server_moon_pulls_towards_the_servers_model():
    """In the first round near and far are alike; from the second on they are not."""

    def under_a_server(rule):
        policies = [Gossip(k="all"), SampleWeighted()]
        return logistic.start(*policies, topology="server", objective=rule, network=network(), init="common")

    ours, plain = under_a_server(MOON(3.0)), under_a_server(Plain())
    torch.testing.assert_close(ours.go(1).models, plain.go(1).models, rtol=0, atol=1e-12)
    assert (ours.go(1).models - plain.go(1).models).abs().max() > 1e-4


@pytest.mark.parametrize(("rule", "steps"), [(DFedSAM(), 1), (DFedSAM(), 4), (MOON(), 1)])
def test_models_are_sent_once_for_each_mixing_step(rule, steps):
    metrics = start(rule, steps=steps).go(1).rounds[-1].metrics
    assert metrics["models_received"] == steps * 2 * GRAPH.number_of_edges() / len(GRAPH)
    assert metrics["bytes_received"] == 4 * 18 * metrics["models_received"]
