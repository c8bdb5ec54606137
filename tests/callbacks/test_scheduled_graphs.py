"""Runs on graphs of a schedule, against numpy; one engine as the other, and resumed as whole."""

import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import Bernoulli, Gossip, Uniform
from dfl_lightning.topology import load_topology

KEYS = {
    "one-peer": {"generator": "one_peer_exponential"},
    "EL-Local": {"generator": "el_local", "args": {"s": 2}},
    "EL-Oracle, failing links": {"generator": "el_oracle", "args": {"s": 2}, "link_up": 0.7},
}


def equal_weights(mask):
    """Rows of a mixing matrix: 1 / (1 + number received from)."""
    mask = np.asarray(mask, float) + np.eye(len(mask))
    return mask / mask.sum(1, keepdims=True)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", KEYS)
def test_clients_average_what_arrives(start, go_on, name, engine):
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
