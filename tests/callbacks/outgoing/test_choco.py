"""CHOCO-SGD with quantized differences against numpy; what it promises about the mean; what it refuses.

With the largest entries it is tested by its conformance cases, with dropouts, resumed runs and engines by the tester.
"""

import functools

import logistic
import networkx as nx
import numpy as np
import pytest
import torch
from logistic import GRAPH

from dfl_lightning.callbacks import CHOCO, FDMS, PENS, Bernoulli, CHOCOMix, Gossip, Metropolis, SignFlip, Uniform
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream


def federation(*policies, lr=0.3, **more):
    settings = {"local_epochs": 1, "batch_size": 4, **more}
    return logistic.start(*policies, optimizer=functools.partial(torch.optim.SGD, lr=lr), **settings)


def test_quantized_differences_are_those_of_numpy():
    """Four rounds of algorithm 2, with Q of section 3.3: s = 7 levels, divided by 1 + min(d / s^2, sqrt(d) / s)."""
    run = federation(Gossip(k="all"), CHOCO(bits=4), CHOCOMix(0.6)).go(4)
    public = np.zeros((6, 18))
    for t, round in enumerate(run.rounds):
        trained = round.trained.numpy()
        for i in range(6):
            difference = trained[i] - public[i]
            draws = torch.rand(18, generator=stream(0, "outgoing CHOCO", t, i, 0), dtype=torch.float64).numpy()
            length = np.linalg.norm(difference)
            level = 7 * np.abs(difference) / length
            rounded = np.floor(level) + (draws < level - np.floor(level))
            public[i] += np.sign(difference) * length * rounded / 7 / (1 + min(18 / 49, np.sqrt(18) / 7))
        expected = trained + 0.6 * (logistic.metropolis() - np.eye(6)) @ public
        np.testing.assert_allclose(round.after.numpy(), expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(round.after.numpy().mean(0), trained.mean(0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.rows("public").numpy(), public, rtol=0, atol=1e-9)


@pytest.mark.parametrize("choco", [functools.partial(CHOCO, 0.2), functools.partial(CHOCO, bits=3)])
def test_without_training_all_reach_the_first_mean(choco):
    run = federation(Gossip(k="all"), choco(), CHOCOMix(0.2), topology="complete", lr=0.0)
    mean, apart = run.models.mean(0), run.models.std(0).max()
    run.go(49)
    assert (run.models - mean).abs().max() < 0.02 * apart


DIRECTED = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)])


def whole(*more, selection=None):
    return (selection or Gossip("all"), CHOCO(), CHOCOMix(), *more)


@pytest.mark.parametrize(
    ("policies", "topology", "sentence"),
    [
        ((Gossip("all"), CHOCO(), Metropolis()), GRAPH, "which aggregation Metropolis does not mix; use --agg"),
        ((Gossip("all"), CHOCOMix()), GRAPH, "mixes the public copies of --outgoing CHOCO; add it"),
        (whole(SignFlip(0.5)), GRAPH, "CHOCO must be the last of the list, since Sign"),
        (whole(Bernoulli(0.1)), GRAPH, "with Bernoulli some clients receive none; us"),
        (whole(Bernoulli(0.1), FDMS()), GRAPH, "use --dropout null|no substitute"),
        (whole(selection=Gossip(2)), GRAPH, "not all neighbours are selected, or links are not mutual; use --sel"),
        (whole(selection=PENS()), GRAPH, "not all neighbours are selected"),
        (whole(), DIRECTED, "or links are not mutual; use .* on an undirected topology"),
        (whole(), {"generator": "complete", "link_up": 0.9}, "the links of topology comp"),
        (whole(), "el_oracle", "the links of topology el_oracle change; use a fixed"),
        ((Gossip("all"), CHOCO(), Uniform()), "server", "CHOCO"),
    ],
)
def test_choco_is_refused_if_messages_can_be_lost(policies, topology, sentence):
    with pytest.raises(UserError, match=sentence):
        federation(*policies, topology=topology)
