"""D-SGD."""

import numpy as np

from plain.book import Method
from plain.model import MODEL, grad
from plain.neighbours import ACTIVE, ALL, CYCLE, DATA, ORDER, RATE, ROWS, STAR, metropolis, trains


def dsgd(layers, models, x, y, graph, active, lr):
    trained = models.copy()
    for i in range(len(models)):
        if active[i]:
            for bx, by in zip(x[i], y[i], strict=True):
                trained[i] = trained[i] - lr * grad(trained[i], bx, by, layers)
    weights = metropolis(graph, active)
    return {"weights": weights * active[:, None], "models": weights @ trained}


METHOD = Method(
    name="D-SGD",
    configs=["dsgd"],
    paper="Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017, arXiv 1705.09056; weights of Xiao, Boyd and Lall, IPSN 2005",
    equation="algorithm 1; Metropolis weights: 1 / (1 + max(d_i, d_j))",
    does="Clients take a step on each batch, then average by Metropolis weights of the graph of those that are active.",
    inputs={**MODEL, "models": f"before the round, {ROWS}", **DATA, "graph": "undirected, [m, m]", **ACTIVE, **RATE},
    outputs={
        "weights": "[m, m]; rows of zeros for clients that have dropped out",
        "models": f"after the round, {ROWS}",
    },
    readings=[
        ("Which W?", "Metropolis weights of the round's graph", "any symmetric doubly stochastic matrix will do"),
        ORDER,
    ],
    cases=[
        ("one step on a cycle", trains(11, graph=CYCLE, active=ALL, lr=0.25)),
        ("two steps on a star", trains(12, count=2, graph=STAR, active=ALL, lr=0.25)),
        ("the centre of a star has dropped out", trains(13, graph=STAR, active=np.arange(5) > 0, lr=0.25)),
        (
            "two have dropped out, two layers",
            trains(14, layers=(3, 2, 2), graph=CYCLE, active=np.array([1, 0, 1, 1, 0], bool), lr=0.5),
        ),
        ("all have dropped out", trains(15, graph=CYCLE, active=~ALL, lr=0.25)),
    ],
    function=dsgd,
)
