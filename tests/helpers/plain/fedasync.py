"""FedAsync: a server that goes a part of the way to each model that arrives."""

import numpy as np

from plain.adpsgd import TIMES
from plain.book import Method
from plain.fedbuff import AFTER, SAME_INSTANT, made
from plain.model import grad
from plain.server import DATA, RATE, SERVER


def fedasync(layers, model, x, y, lr, seconds, until, step, power):
    m = len(x)
    starts, versions, known = np.tile(model, (m, 1)), 0, np.zeros(m, int)
    finish = np.array(seconds, float)
    while finish.min() <= until:
        i = int(finish.argmin())
        trained = starts[i] - lr * grad(starts[i], x[i][0], y[i][0], layers)
        share = step / (1 + versions - known[i]) ** power
        model, versions = (1 - share) * model + share * trained, versions + 1
        starts[i], known[i] = model, versions
        finish[i] += seconds[i]
    return {"model": model, "starts": starts, "versions": versions}


METHOD = Method(
    name="FedAsync",
    configs=["fedbuff --aggregation.k 1 --aggregation.contribution model"],
    paper="Xie, Koyejo and Gupta, Asynchronous Federated Optimization, 2019, arXiv 1903.03934",
    equation="algorithm 1, and the polynomial factor of section 5.2",
    does="The server's model becomes a mean of itself and each model that arrives, with the share step * (1 + t)^-power; t "
    "is the number of its steps since the client took its model.",
    inputs={
        **SERVER,
        **DATA,
        **RATE,
        **TIMES,
        "step": "share of a model without delay",
        "power": "exponent of the factor",
    },
    outputs=AFTER,
    readings=[
        SAME_INSTANT,
        (
            "Does a client train with a proximal term?",
            "no",
            "it is an option of the local training, which FedProx covers",
        ),
    ],
    cases=[
        ("two clients, one twice as fast", made(1, [1, 2], 4, step=0.5, power=1.0)),
        ("three of speeds 1, 2 and 4", made(2, [1, 2, 4], 8, step=0.75, power=0.5)),
        ("old models count as new ones, two layers", made(3, [1, 1.5, 0.5], 3, layers=(3, 2, 3), step=0.5, power=0.0)),
    ],
    function=fedasync,
)
