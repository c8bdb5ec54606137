"""Examples and words of methods with adapters of low rank."""

import numpy as np

from plain.book import Numbers
from plain.model import softmax
from plain.neighbours import ACTIVE, ALL, CYCLE, DATA, RATE, STAR, metropolis


def gradients(weight, bias, a, b, scale, x, y):
    """Return the gradients of the mean cross-entropy of softmax((W + scale B A) x + c), for A and for B."""
    p = softmax(x @ (weight + scale * b @ a).T + bias)
    p[np.arange(len(y)), y] -= 1
    whole = scale * p.T @ x / len(y)  # of W + scale B A, times the scale
    return b.T @ whole, whole @ a.T


def descended(weight, bias, a, b, scale, x, y, lr, trains_a=True, trains_b=True):
    for bx, by in zip(x, y, strict=True):
        of_a, of_b = gradients(weight, bias, a, b, scale, bx, by)
        a, b = a - lr * of_a * trains_a, b - lr * of_b * trains_b
    return a, b


def mixed(weights, factors):
    return np.einsum("ij,j...->i...", weights, factors)


def one_round(weight, bias, a, b, scale, x, y, graph, active, lr, **trains):
    """Return the factors after local training, the weights of the graph, and the factors' averages."""
    new_a, new_b = a.copy(), b.copy()
    for i in np.flatnonzero(active):
        new_a[i], new_b[i] = descended(weight, bias, a[i], b[i], scale, x[i], y[i], lr, **trains)
    weights = metropolis(graph, active)
    return new_a, new_b, mixed(weights, new_a), mixed(weights, new_b)


def drawn(seed, count=1, inputs=3, classes=2, rank=1, one_a=False, **more):
    """Frozen weights, factors of five clients, and their data."""
    numbers, m = Numbers(seed), 5
    return {
        "weight": numbers.floats(classes, inputs),
        "bias": numbers.floats(classes),
        "a": numbers.floats(rank, inputs) if one_a else numbers.floats(m, rank, inputs),
        "b": numbers.floats(m, classes, rank),
        "scale": 2.0,
        "x": [numbers.floats(count, 2, inputs, size=2) for _ in range(m)],
        "y": [numbers.classes(count, 2, number=classes) for _ in range(m)],
        "active": ALL,
        "lr": 0.25,
        **more,
    }


SIZES = {
    "weight": "W of the only layer, frozen, [classes, inputs]; its scores are (W + scale B A) x + c, its loss is the mean "
    "cross-entropy of their softmax",
    "bias": "c of the layer, frozen, [classes]",
    "a": "A of each client before the round, [m, rank, inputs]",
    "b": "B of each client before the round, [m, classes, rank]",
    "scale": "alpha / rank",
    **DATA,
    "graph": "undirected, [m, m]; W are its Metropolis weights, 1 / (1 + max(d_i, d_j))",
    **ACTIVE,
    **RATE,
}
AFTER = {"a": "after the round, [m, rank, inputs]", "b": "after the round, [m, classes, rank]"}
WEIGHTS = ("Which mixing matrix?", "Metropolis weights of the round's graph", "any doubly stochastic one will do")
NO_SERVER = ("Who averages?", "each client with its neighbours", "the paper has a server; over a graph it is this")
PLAIN = ("Which optimizer?", "plain SGD", "papers use AdamW; the method does not depend on it")
CASES = {
    "one step on a cycle": {"graph": CYCLE},
    "two steps on a star, rank 2": {"graph": STAR, "count": 2, "rank": 2, "inputs": 4, "classes": 3},
    "two have dropped out": {"graph": CYCLE, "active": np.array([1, 0, 1, 1, 0], bool)},
}


def cases(seed, **more):
    return [(name, drawn(seed + place, **options, **more)) for place, (name, options) in enumerate(CASES.items())]
