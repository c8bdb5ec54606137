"""AD-PSGD: one event after the other, in the order of time, then of the clients' numbers."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, grad, size
from plain.server import DATA, RATE, data

TIMES = {
    "seconds": "how long a training of each client takes, [m]; messages take no time",
    "until": "seconds; what ends later is not part of the case",
}


def adpsgd(layers, models, x, y, lr, seconds, partners, until):
    models, m = models.copy(), len(models)
    begun, finish, trainings = models.copy(), np.array(seconds, float), np.zeros(m, int)
    while finish.min() <= until:
        i = int(finish.argmin())  # of equal ones the first
        update = -lr * grad(begun[i], x[i][0], y[i][0], layers)
        j = partners[i, trainings[i]]
        if j >= 0:
            models[i] = models[j] = (models[i] + models[j]) / 2
        models[i] = begun[i] = models[i] + update
        trainings[i] += 1
        finish[i] += seconds[i]
    return {"models": models, "trainings": trainings}


def timed(seed, seconds, until, layers=(3, 2), lr=0.25):
    """Inputs that methods on a clock have in common, without the first models."""
    m, numbers = len(seconds), Numbers(seed)
    rest = {**data(numbers, m, 1, layers), "lr": lr, "seconds": np.array(seconds, float), "until": float(until)}
    return {"layers": list(layers)}, numbers, rest


def made(seed, seconds, until, partners, **more):
    first, numbers, rest = timed(seed, seconds, until, **more)
    models = numbers.floats(len(seconds), size(first["layers"]))
    return {**first, "models": models, **rest, "partners": np.array(partners)}


METHOD = Method(
    name="AD-PSGD",
    configs=["adpsgd"],
    paper="Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018, arXiv 1710.06952",
    equation="algorithm 1",
    does="A client that has finished a gradient step averages its model with that of a neighbour, adds the step to its "
    "own model, and computes the next gradient there.",
    inputs={
        **MODEL,
        "models": "first models, [m, P]",
        **DATA,
        **RATE,
        **TIMES,
        "partners": "the neighbour in each training of each client, [m, trainings]; -1: none",
    },
    outputs={"models": "of all clients in the end, [m, P]", "trainings": "how many steps each client has made, [m]"},
    readings=[
        (
            "When do two models become their mean?",
            "at the instant when a client has its gradient, before it adds its step",
            "algorithm 1 averages after the gradient and before the update; another thread may average while it computes",
        ),
        (
            "Who is first at one instant?",
            "the client with the lower number",
            "the analysis numbers all steps one after the other, and does not say how",
        ),
    ],
    cases=[
        ("two clients, one twice as fast", made(1, [1, 2], 4, [[1] * 4, [0] * 4])),
        ("three on a line, of speeds 1, 2 and 4", made(2, [1, 2, 4], 4, [[1] * 4, [0, 2, 0, 2], [1] * 4])),
        (
            "one without a neighbour, two layers",
            made(3, [1, 1.5, 0.5], 3, [[2] * 6, [-1] * 6, [0] * 6], layers=(3, 2, 3)),
        ),
    ],
    function=adpsgd,
)
