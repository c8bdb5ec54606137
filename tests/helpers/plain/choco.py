"""CHOCO-SGD."""

import numpy as np

from plain.book import Method, others
from plain.model import MODEL, grad
from plain.neighbours import CYCLE, GRAPH, ORDER, RATE, ROWS, STAR, metropolis, trains


def choco(layers, models, public, x, y, graph, lr, gamma, kept, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    public = public.copy()
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for bx, by in zip(x[i], y[i], strict=True):
                trained[i] = trained[i] - lr * grad(trained[i], bx, by, layers)
        for i in range(m):
            difference = trained[i] - public[i]
            largest = sorted(range(len(difference)), key=lambda place, of=difference: -abs(of[place]))[:kept]
            public[i, largest] += difference[largest]
        models = trained.copy()
        for i in range(m):
            for j in range(m):
                models[i] += gamma * weights[i, j] * (public[j] - public[i])
    return {"models": models, "public": public}


def compressed(seed, graph=CYCLE, kept=3, gamma=0.5, rounds=1, fresh=False, **more):
    case = trains(seed, graph=graph, lr=0.5, gamma=gamma, kept=kept, rounds=rounds, **more)
    public = np.zeros_like(case["models"]) if fresh else case["models"] - trains(seed + 50)["models"] / 2
    return {**case, "public": public}


METHOD = Method(
    name="CHOCO-SGD",
    configs=["choco"],
    paper="Koloskova, Stich and Jaggi, Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication, ICML 2019, arXiv 1902.00340",
    equation="algorithm 2",
    does="A gradient step; q_i are the largest entries of the difference of x_i to its public copy and are added to the "
    "copy everywhere; then x_i moves by gamma sum_j w_ij (copy_j - copy_i), w Metropolis weights.",
    inputs={
        **MODEL,
        "models": f"before the first round, {ROWS}",
        "public": f"public copies before the first round, {ROWS}; zeros in the paper's",
        "x": "training data of each client, [batches, samples, inputs]",
        "y": "their classes, [batches, samples]",
        **GRAPH,
        **RATE,
        "gamma": "consensus step size",
        "kept": "entries of a difference that are sent",
        "rounds": "how many",
    },
    outputs={"models": f"after the rounds, {ROWS}", "public": f"public copies after the rounds, {ROWS}"},
    readings=[ORDER, ("Entries of equal size", "the first ones are sent", "the paper does not say")],
    cases=[
        ("a first round", compressed(131, fresh=True)),
        ("a later round", compressed(132)),
        ("three rounds on a star", compressed(133, graph=STAR, gamma=0.25, rounds=3)),
        ("all entries and gamma 1: D-SGD", compressed(134, graph=others(5), kept=8, gamma=1.0, rounds=2)),
        ("no neighbours", compressed(135, graph=np.zeros((5, 5), bool))),
    ],
    function=choco,
)
