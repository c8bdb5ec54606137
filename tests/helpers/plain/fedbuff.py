"""FedBuff: a server that takes a step after every k updates."""

import numpy as np

from plain.adpsgd import TIMES, timed
from plain.book import Method
from plain.model import grad, size
from plain.server import DATA, RATE, SERVER

AFTER = {
    "model": "the server's in the end, [P]",
    "starts": "the models that the clients train from in the end, [m, P]",
    "versions": "how many steps the server has taken",
}
SAME_INSTANT = (
    "Whose update is first at one instant?",
    "that of the client with the lower number",
    "the server takes updates in the order of their arrival",
)


def fedbuff(layers, model, x, y, lr, seconds, until, k, step, power):
    m = len(x)
    starts, versions, known = np.tile(model, (m, 1)), 0, np.zeros(m, int)
    finish, buffer = np.array(seconds, float), []
    while finish.min() <= until:
        i = int(finish.argmin())
        update = -lr * grad(starts[i], x[i][0], y[i][0], layers)
        buffer.append(update / (1 + versions - known[i]) ** power)
        if len(buffer) == k:
            model, buffer, versions = model + step * sum(buffer) / k, [], versions + 1
        starts[i], known[i] = model, versions
        finish[i] += seconds[i]
    return {"model": model, "starts": starts, "versions": versions}


def made(seed, seconds, until, layers=(3, 2), **more):
    first, numbers, rest = timed(seed, seconds, until, layers)
    return {**first, "model": numbers.floats(size(layers)), **rest, **more}


METHOD = Method(
    name="FedBuff",
    configs=["fedbuff"],
    paper="Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, arXiv 2106.06639",
    equation="algorithm 1, and the factor 1 / sqrt(1 + staleness) of its experiments",
    does="The server adds up the updates that arrive, each over a power of 1 and the number of its steps since the client "
    "took its model; after k of them it takes a step, and starts again from 0.",
    inputs={
        **SERVER,
        **DATA,
        **RATE,
        **TIMES,
        "k": "updates in a step",
        "step": "length of the server's step",
        "power": "exponent of the factor",
    },
    outputs=AFTER,
    readings=[
        (
            "Is the sum divided by k or by the sum of the factors?",
            "by k",
            "algorithm 1 divides by K; the factors are applied to each update",
        ),
        SAME_INSTANT,
    ],
    cases=[
        ("a step for each update", made(1, [1, 2], 4, k=1, step=1.0, power=0.5)),
        ("three of speeds 1, 2 and 4, two updates a step", made(2, [1, 2, 4], 8, k=2, step=0.5, power=0.5)),
        ("a buffer that is not full in the end", made(3, [1, 1.5, 0.5], 2, layers=(3, 2, 3), k=5, step=1.5, power=1.0)),
        ("old updates count as new ones", made(4, [1, 3], 6, k=3, step=1.0, power=0.0)),
    ],
    function=fedbuff,
)
