"""D2."""

import numpy as np

from plain.book import Method
from plain.model import MODEL, grad
from plain.neighbours import CYCLE, RATE, ROWS, STAR, UNDIRECTED, metropolis, trains


def d2(layers, models, x, y, graph, lr, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))

    def grads(at):
        return np.array([grad(at[i], x[i][0], y[i][0], layers) for i in range(m)])

    former, now = models, weights @ (models - lr * grads(models))
    for _ in range(rounds - 1):
        former, now = now, weights @ (2 * now - former - lr * grads(now) + lr * grads(former))
    return {"models": now}


METHOD = Method(
    name="D2",
    configs=["d2"],
    paper="Tang et al., D2: Decentralized Training over Decentralized Data, ICML 2018, arXiv 1803.07068",
    equation="algorithm 1",
    does="x(1) = W (x(0) - lr g(0)), then x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1)), g the gradients at x.",
    inputs={**MODEL, "models": f"x(0), {ROWS}", **UNDIRECTED, **RATE, "rounds": "how many rounds"},
    outputs={"models": f"after the rounds, {ROWS}"},
    readings=[],
    cases=[
        ("the first round is D-SGD", trains(91, graph=CYCLE, lr=0.25, rounds=1)),
        ("two rounds", trains(92, graph=CYCLE, lr=0.25, rounds=2)),
        ("five rounds on a star, two layers", trains(93, layers=(3, 2, 2), graph=STAR, lr=0.125, rounds=5)),
    ],
    function=d2,
)
