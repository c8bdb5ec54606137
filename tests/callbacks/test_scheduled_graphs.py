"""Runs on graphs of a schedule, against numpy; one engine as the other, and resumed as whole."""

import numpy as np
import pytest
import torch
from pairs import weight_matrix

from dfl_lightning.callbacks import FDMS, Bernoulli, FromTopology, Gossip, Metropolis, Uniform
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError

KEYS = {
    "one-peer": {"generator": "one_peer_exponential"},
    "EL-Local": {"generator": "el_local", "args": {"s": 2}},
    "EL-Oracle, failing links": {"generator": "el_oracle", "args": {"s": 2}, "link_up": 0.7},
}


def equal_weights(mask):
    """Build the rows of a mixing matrix: 1 / (1 + number received from)."""
    mask = np.asarray(mask, float) + np.eye(len(mask))
    return mask / mask.sum(1, keepdims=True)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", KEYS)
def test_clients_average_received_models(start, go_on, name, engine):
    settings = {"topology": KEYS[name], "trainer": {"engine": engine, "precision": "64-true"}}

    def policies():
        return Gossip(k="all"), Uniform(), Bernoulli(0.3)

    whole, topology = start(*policies(), **settings).go(5), load_topology(KEYS[name], 6)
    for t, round in enumerate(whole.rounds):
        up = round.active[:6].numpy()
        arrives = topology.reachable(t).mask.numpy() & up[:, None] & up[None, :]
        expected = round.before.numpy().copy()
        expected[up] = (equal_weights(arrives) @ round.trained.numpy())[up]
        np.testing.assert_allclose(round.after.numpy(), expected, rtol=0, atol=1e-12)
        assert round.metrics["models_received"] == pytest.approx(arrives.sum() / 6)
    half = start(*policies(), **settings).go(3)
    later = go_on(half, *policies(), **settings).go(2)
    assert torch.equal(later.rounds[-1].after, whole.rounds[-1].after)


BASE = {"generator": "base_graph", "args": {"k": 2}}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_dropped_clients_leave_their_weights_to_receivers(start, go_on, engine):
    settings = {"topology": BASE, "clients": 7, "trainer": {"engine": engine, "precision": "64-true"}}

    def policies():
        return Gossip(k="all"), FromTopology(), Bernoulli(0.3)

    whole, topology = start(*policies(), **settings).go(6), load_topology(BASE, 7)
    for t, round in enumerate(whole.rounds):
        up = round.active[:7].numpy()
        weights = weight_matrix(topology, t).numpy() * up[:, None] * up[None, :]
        weights += np.diag(1 - weights.sum(1))
        mixed = weights @ np.where(up[:, None], round.trained.numpy(), round.before.numpy())
        np.testing.assert_allclose(round.after.numpy(), mixed, rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights.sum(0), 1, rtol=0, atol=1e-12)  # the mean moves by training only
    assert any(0 < round.dropped.sum() < 7 for round in whole.rounds)
    half = start(*policies(), **settings).go(4)
    later = go_on(half, *policies(), topology=BASE, trainer=settings["trainer"]).go(2)
    assert torch.equal(later.rounds[-1].after, whole.rounds[-1].after)


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        (
            (Metropolis(),),
            "prescribes a mixing matrix, which aggregation Metropolis ignores; use --aggregation FromTopology",
        ),
        (
            (FromTopology(), Bernoulli(0.3), FDMS()),
            "topology base_graph: a client that dropped out has no substitute in a mix",
        ),
    ],
)
@pytest.mark.parametrize("keys", [BASE, {"sequence": [{"generator": "complete", "rounds": 1}, BASE]}])
def test_policies_incompatible_with_base_graphs_are_refused(start, policies, keys, sentence):
    if "sequence" in keys:
        sentence = sentence.replace("topology base_graph", "topology changing")
    with pytest.raises(UserError, match=sentence):
        start(Gossip(k="all"), *policies, topology=keys)
