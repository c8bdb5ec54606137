"""The error of averaging factors instead of products, against numpy on the rows of the run."""

import numpy as np
import pytest

from dfl_lightning import UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.models import MLP, LoRA


class Keeps(cb.Monitor):
    """Keeps the trained rows and the weights of each round."""

    def __init__(self):
        self.rounds = []

    def on_weigh(self, round):
        weights = np.zeros((round.num_nodes, round.num_nodes))
        weights[round.voters.receivers, round.voters.senders] = round.weights
        rows = round.bank.rows("sent" if round.bank.changes_messages else "trained").clone().numpy()
        own = round.bank.rows("trained").clone().numpy()
        self.rounds.append((weights, rows, own, dict(round.metrics)))


def network(**options):
    return LoRA(MLP(hidden=[7]), rank=2, targets=["*"], **options)


def factors(layout, row):
    tensors = {e.name: row[e.start : e.stop].reshape(tuple(e.shape)) for e in layout.entries}
    return [(tensors[name], tensors[name.replace("_A", "_B")]) for name in tensors if name.endswith("_A")]


@pytest.mark.parametrize("sends", [(), (cb.GaussianNoise(1.0, 0.1),)], ids=["as they are", "with noise"])
def test_the_error_is_that_of_numpy(small_run, sends):
    kept, policies = Keeps(), [cb.Gossip(k=2), *sends, cb.Uniform(), cb.Bernoulli(0.3)]
    options = {"callbacks": [cb.ProductError(), kept], "module": {"network": network()}, "precision": "64-true"}
    run = small_run(3, policies=policies, **options).fit()
    layout = run.module.federation.layout
    for weights, sent, own, found in kept.rounds:
        errors, lengths = [], []
        for receiver in np.flatnonzero(weights.any(1)):
            squares = length = 0.0
            models = [factors(layout, own[j] if j == receiver else sent[j]) for j in range(6)]
            for layer in range(2):
                mean = [sum(weights[receiver, j] * models[j][layer][which] for j in range(6)) for which in (0, 1)]
                products = [models[j][layer][1] @ models[j][layer][0] for j in range(6)]
                product = sum(weights[receiver, j] * products[j] for j in range(6))
                squares += ((product - mean[1] @ mean[0]) ** 2).sum()
                length += (product**2).sum()
            errors.append(squares**0.5)
            lengths.append(length**0.5)
        assert found["product_error"] == pytest.approx(np.mean(errors), rel=1e-9)
        assert found["product_error_relative"] == pytest.approx(np.mean(np.divide(errors, lengths)), rel=1e-9)
        assert found["product_error"] > 0


@pytest.mark.parametrize(("network_of", "shared"), [({"factors": "B"}, ["*"]), ({}, ["*lora_A"])])
def test_factors_that_are_not_averaged_together_have_no_error(small_run, network_of, shared):
    module = {"network": network(**network_of), "shared": shared}
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], callbacks=[cb.ProductError()], module=module).fit()
    assert run.module.bank.boundary.metrics["product_error"] == 0


def test_a_network_without_adapters_is_refused(small_run):
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], callbacks=[cb.ProductError()])
    with pytest.raises(UserError, match="ProductError measures adapters, and the network has no parameters lora_A"):
        run.fit()
