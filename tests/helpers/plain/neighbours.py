"""Examples and words of methods in which clients learn from neighbours."""

import numpy as np

from plain.book import Numbers
from plain.model import size


def metropolis(graph, active):
    m = len(graph)
    there = graph & active[:, None] & active[None, :]
    degree, weights = there.sum(1), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if there[i, j]:
                weights[i, j] = 1 / (1 + max(degree[i], degree[j]))
        weights[i, i] = 1 - weights[i].sum()
    return weights


CYCLE = np.array([[(i - j) % 5 in (1, 4) for j in range(5)] for i in range(5)])
STAR = np.array([[(i == 0) != (j == 0) for j in range(5)] for i in range(5)])
ALL = np.ones(5, bool)


def rows(seed, m=5, p=4, **more):
    numbers = Numbers(seed)
    return {"before": numbers.floats(m, p), "trained": numbers.floats(m, p, size=2), **more}


def trains(seed, m=5, count=1, layers=(3, 2), samples=2, **more):
    numbers = Numbers(seed)
    counts = [count] * m if isinstance(count, int) else count
    models = numbers.floats(m, size(layers))
    x = [numbers.floats(c, samples, layers[0], size=2) for c in counts]
    y = [numbers.classes(c, samples, number=layers[-1]) for c in counts]
    return {"layers": list(layers), "models": models, "x": x, "y": y, **more}


def judged(seed, m=5, layers=(3, 2), **more):
    numbers = Numbers(seed)
    trained = numbers.floats(m, size(layers), size=2)
    data = {"x": numbers.floats(m, 4, layers[0], size=2), "y": numbers.classes(m, 4, number=layers[-1])}
    return {"layers": list(layers), "trained": trained, **data, **more}


def averages(seed, m, unknown):
    found = abs(Numbers(seed).floats(m, m, size=2))
    for i, j in unknown:
        found[i, j] = np.nan
    return found


GRAPH = {"graph": "from whom a client can receive, [m, m], receiver by sender"}
ACTIVE = {"active": "who is active, [m]"}
ROWS = "[m, P], a row for each client"
TRAINED = {"trained": f"models after local training, {ROWS}"}
DATA = {
    "x": "training data of each client, [batches, samples, inputs]; batches are taken once, in this order",
    "y": "their classes, [batches, samples]",
}
OWN = {"x": "training inputs, [m, samples, inputs]", "y": "their classes, [m, samples]"}
RATE = {"lr": "learning rate of plain SGD"}
ORDER = ("Average, then train, or the other way round?", "train, then average", "so that all methods here do the same")
UNDIRECTED = {**DATA, "graph": "undirected, [m, m]; W are its Metropolis weights, 1 / (1 + max(d_i, d_j))"}
