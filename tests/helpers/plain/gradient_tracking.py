"""Gradient tracking with local steps."""

import numpy as np

from plain.book import Method
from plain.model import MODEL, grad
from plain.neighbours import CYCLE, DATA, RATE, ROWS, STAR, metropolis, trains


def gradient_tracking(layers, models, correction, x, y, graph, lr, steps, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for _ in range(steps):
                trained[i] = trained[i] - lr * (grad(trained[i], x[i][0], y[i][0], layers) + correction[i])
        z = (models - trained) / (steps * lr)
        correction = correction + weights @ z - z
        models = weights @ trained
    return {"models": models, "correction": correction}


METHOD = Method(
    name="Gradient tracking with local steps",
    configs=["gradient_tracking"],
    paper="Liu, Lin, Koloskova and Stich, Decentralized Gradient Tracking with Local Steps, arXiv 2301.01313 (K-GT)",
    equation="algorithm 1, with a step of communication of 1",
    does="Local steps follow the gradient plus a correction c. With z the mean step of the round, c becomes c + W z - z, "
    "and models become W w; W are Metropolis weights.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "correction": f"c before the round, {ROWS}",
        **DATA,
        "graph": "undirected, [m, m]",
        **RATE,
        "steps": "local steps in a round, all on the one batch",
        "rounds": "how many rounds",
    },
    outputs={"models": f"after the rounds, {ROWS}", "correction": f"c after the rounds, {ROWS}"},
    readings=[
        ("Where do corrections start?", "given; at 0 in this library", "the paper's first ones sum to 0, too"),
        ("The step of communication", "1", "mixing is as with any other rule"),
    ],
    cases=[
        ("one step", trains(21, correction=np.zeros((5, 8)), graph=CYCLE, lr=0.25, steps=1, rounds=1)),
        (
            "four steps, corrections given",
            trains(
                22, correction=np.outer([1, -1, 0, 2, -2], np.arange(8)) / 16, graph=STAR, lr=0.25, steps=4, rounds=1
            ),
        ),
        ("three rounds of two steps", trains(23, correction=np.zeros((5, 8)), graph=CYCLE, lr=0.25, steps=2, rounds=3)),
    ],
    function=gradient_tracking,
)
