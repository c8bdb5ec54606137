"""`dfl-fit --config afind_literal` against a plain loop of numpy: algorithm 1 as printed, training included.

The loop takes the clients' data, the first model and the orders of the batches from the run, and nothing else.
"""

import math

import numpy as np
import pytest

from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, read
from dfl_lightning.engines.draws import Draws
from dfl_lightning.utils.storage.shipped_files import shipped

ROUNDS, EPOCHS, BATCH, LR, MOMENTUM = 6, 5, 16, 0.05, 0.9
TAU, GAMMA, TEMPERATURE = 0.5, 0.9, 1.0
"""The settings of configs/afind_literal.yaml; nu is given by each test."""


def fit(folder, nu):
    words = {
        "config": shipped("configs")["afind_literal"],
        "selection.nu": nu,
        "trainer.max_rounds": ROUNDS,
        "trainer.precision": "64-true",
        "trainer.accelerator": "cpu",
        "trainer.default_root_dir": folder,
        "trainer.enable_progress_bar": "false",
    }
    return DFLCLI("fit", read(split([f"--{key}={value}" for key, value in words.items()])))


# --- the network: 64 inputs, 64 hidden units with ReLU, 10 classes; its loss is the mean cross-entropy ----------------
def outputs(model, x):
    weights, biases, last, last_biases = model
    hidden = np.maximum(x @ weights.T + biases, 0)
    scores = hidden @ last.T + last_biases
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, raised / raised.sum(1, keepdims=True)


def loss(model, x, y):
    return -np.log(outputs(model, x)[1][range(len(y)), y]).mean()


def gradient(model, x, y):
    hidden, error = outputs(model, x)
    error[range(len(y)), y] -= 1
    error /= len(y)
    back = error @ model[2] * (hidden > 0)
    return [back.T @ x, back.sum(0), error.T @ hidden, error.sum(0)]


def trained(model, x, y, orders):
    model, velocity = [part.copy() for part in model], [0.0] * 4
    for order in orders:
        for start in range(0, len(y), BATCH):
            batch = order[start : start + BATCH]
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient(model, x[batch], y[batch]), strict=True)]
            model = [part - LR * v for part, v in zip(model, velocity, strict=True)]
    return model


# --- algorithm 1 ------------------------------------------------------------------------------------------------------
def proxy(model, x, y, batch):
    """Return the gradient of the hidden layer on one batch of a client, as a vector."""
    return np.concatenate([part.ravel() for part in gradient(model, x[batch], y[batch])[:2]])


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def algorithm_1(first, data, orders, nu):
    """Yield the neighbours that each client selects in a round, and the models after it.

    Everything is shared, a gradient is that of a round's first batch, and theta of round 0 selects all (docs/afind.md).
    """
    m = len(data)
    others = [[j for j in range(m) if j != i] for i in range(m)]
    models, theta = [first] * m, [0.0] * m
    p = [dict.fromkeys(near, 1 / len(near)) for near in others]
    for number in range(ROUNDS):
        drawn = [orders(number, j) for j in range(m)]
        after = [trained(models[i], *data[i], drawn[i]) for i in range(m)]
        selected = [[j for j in others[i] if p[i][j] >= theta[i]] for i in range(m)]  # line 3
        mixed = []
        for i, chosen in enumerate(selected):
            phi = {j: proxy(models[i], *data[j], drawn[j][0][:BATCH]) for j in [i, *chosen]}  # lines 7 and 11
            e = {j: cosine(phi[i], phi[j]) for j in chosen}
            h = sum(-(s + 1) / 2 * math.log((s + 1) / 2) for s in e.values())  # eq. 10
            theta[i] = TAU * (1 - 1 / (1 + math.exp(-h)))  # eq. 11 to 13
            left = 1 - sum(p[i][j] for j in others[i] if j not in chosen)  # eq. 9
            total = sum(math.exp((s - 1) / nu) for s in e.values())
            p[i] |= {j: left * math.exp((s - 1) / nu) / total for j, s in e.items()}
            judged = {j: (1 - GAMMA) * loss(after[i], *data[j]) + GAMMA * loss(models[i], *data[j]) for j in chosen}
            votes = {j: math.exp(-value / TEMPERATURE) for j, value in judged.items()}  # eq. 14 to 16
            shares = {j: vote / sum(votes.values()) for j, vote in votes.items()} or {i: 1}
            mixed.append([sum(share * after[j][k] for j, share in shares.items()) for k in range(4)])
        models = mixed
        yield selected, models


@pytest.mark.parametrize("nu", [0.01, 0.2, 1])
def test_shipped_config_is_algorithm_1_as_printed(nu, tmp_path, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    run = fit(tmp_path, nu)
    clients = run.model.federation.data.to("cpu")
    data = [
        ((clients.images[own].double() * clients.scale + clients.shift).flatten(1).numpy(), clients.labels[own].numpy())
        for own in clients.train
    ]
    first = [parameter.detach().double().numpy() for parameter in run.model.network.parameters()]

    def orders(number, client):
        return Draws(0, "local", number).orders_of(client, 0, EPOCHS, len(data[client][1])).numpy()

    graphs = run.trainer.run.graphs
    rounds = list(algorithm_1(first, data, orders, nu))
    for number, (selected, _) in enumerate(rounds):
        of_round = (graphs["round"] == number) & graphs["selected"].astype(bool)
        found = sorted(zip(graphs["receiver"][of_round].tolist(), graphs["sender"][of_round].tolist(), strict=True))
        assert found == [(i, j) for i, chosen in enumerate(selected) for j in chosen]
    selected, models = rounds[-1]
    assert min(map(len, selected)) == max(map(len, selected)) == (1 if nu == 0.01 else len(data) - 1)
    wanted = np.stack([np.concatenate([part.ravel() for part in model]) for model in models])
    np.testing.assert_allclose(run.model.bank.boundary.rows["models"].numpy(), wanted, rtol=0, atol=1e-12)
