"""MOON."""

import numpy as np

from plain.book import Method
from plain.model import columns, forward, grad, unpacked
from plain.server import AFTER, DATA, NO_MOMENTUM, RATE, ROUNDS, SERVER, averaged, batches, made, own_models


def contrast(w, x, layers, near, far, tau):
    """The gradient of the mean of -log(e^(cos(z, near) / tau) / (e^(cos(z, near) / tau) + e^(cos(z, far) / tau)))."""
    inputs, _ = forward(w, x, layers)
    z = inputs[-1]

    def cosine_and_slope(other):
        lengths = np.linalg.norm(z, axis=1, keepdims=True), np.linalg.norm(other, axis=1, keepdims=True)
        cos = (z * other).sum(1, keepdims=True) / lengths[0] / lengths[1]
        return cos, other / lengths[0] / lengths[1] - cos * z / lengths[0] ** 2

    (to_near, near_slope), (to_far, far_slope) = cosine_and_slope(near), cosine_and_slope(far)
    share = 1 / (1 + np.exp((to_near - to_far) / tau))
    error = share / tau * (far_slope - near_slope) / len(x)
    parts = [np.zeros(len(columns(layers, len(layers) - 2)))]
    for place in reversed(range(len(layers) - 2)):
        error = error * (1 - inputs[place + 1] ** 2)
        parts = [(error.T @ inputs[place]).ravel(), error.sum(0), *parts]
        error = error @ unpacked(w, layers)[place][0]
    return np.concatenate(parts)


def moon(layers, model, previous, x, y, active, lr, mu, tau, rounds):
    previous, mine = previous.copy(), [i for i in range(len(x)) if active[i]]
    for _ in range(rounds):
        rows = []
        for i in mine:
            w = model.copy()
            for bx, by in batches(x[i], y[i]):
                near, far = forward(model, bx, layers)[0][-1], forward(previous[i], bx, layers)[0][-1]
                w = w - lr * (grad(w, bx, by, layers) + mu * contrast(w, bx, layers, near, far, tau))
            rows.append(w)
        previous[mine] = rows
        model = averaged(rows, [x[i] for i in mine])
    return {"model": model, "previous": previous}


def of_moon(seed, m=3, mu=1.0, tau=0.5, rounds=1, first=False, active=None, **more):
    case = made(seed, m, layers=(3, 3, 2), **more)
    previous = np.tile(case["model"], (m, 1)) if first else own_models(seed, m, (3, 3, 2))
    active = np.ones(m, bool) if active is None else np.array(active)
    return {**case, "previous": previous, "active": active, "mu": mu, "tau": tau, "rounds": rounds}


METHOD = Method(
    name="MOON",
    configs=["moon"],
    paper="Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257",
    equation="eq. 3, algorithm 1",
    does="The loss of a batch has mu times the mean of -log(e^(cos(z, z_near) / tau) / (e^(cos(z, z_near) / tau) + "
    "e^(cos(z, z_far) / tau))) added, z the features by the model in training, z_near by the server's, z_far by the model "
    "that the client trained before.",
    inputs={
        **SERVER,
        "previous": "the model that each client trained when it last took part, [m, P]",
        **DATA,
        "active": "who takes part, [m], in all rounds",
        **RATE,
        "mu": "weight of the contrast",
        "tau": "temperature",
        **ROUNDS,
    },
    outputs={**AFTER, "previous": "the model that each client trained last, [m, P]"},
    readings=[
        (
            "Which features?",
            "the inputs of the last layer, after tanh",
            "the paper has a projection head of two layers before its last layer; the cases' networks have none",
        ),
        (
            "What is the earlier model before the first training?",
            "the first model of the run, so that in round 0 near and far are alike and the contrast has no gradient",
            "the authors' code leaves the earlier model out in the first round, which has the same gradient",
        ),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_moon(51, m=1, count=1)),
        ("a round", of_moon(52, count=[1, 3, 2])),
        ("the first round is FedAvg's", of_moon(53, count=1, first=True)),
        ("two rounds", of_moon(54, count=1, rounds=2)),
        ("one does not take part", of_moon(55, active=[True, False, True], mu=5.0)),
        ("mu = 0 is FedAvg", of_moon(56, mu=0.0)),
        ("a low temperature", of_moon(57, tau=0.0625, lr=0.0625)),
    ],
    function=moon,
)
