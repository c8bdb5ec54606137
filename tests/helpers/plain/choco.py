"""CHOCO-SGD."""

import math

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, grad
from plain.neighbours import CYCLE, GRAPH, ORDER, RATE, ROWS, STAR, metropolis, trains


def quantized(vector, draws, s):
    """Entries rounded at random to multiples of the length over s, divided by what makes the compression contract."""
    length, d = math.sqrt(sum(entry**2 for entry in vector)), len(vector)
    found = np.zeros(d)
    for place, entry in enumerate(vector):
        level = s * abs(entry) / length
        level = math.floor(level) + (draws[place] < level - math.floor(level))
        found[place] = length * math.copysign(level / s, entry) / (1 + min(d / s**2, math.sqrt(d) / s))
    return found


def choco(layers, models, public, x, y, graph, lr, gamma, kept, bits, draws, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    public = public.copy()
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for bx, by in zip(x[i], y[i], strict=True):
                trained[i] = trained[i] - lr * grad(trained[i], bx, by, layers)
        for i in range(m):
            difference = trained[i] - public[i]
            if bits:
                public[i] += quantized(difference, draws[i], 2 ** (bits - 1) - 1)
                continue
            largest = sorted(range(len(difference)), key=lambda place, of=difference: -abs(of[place]))[:kept]
            public[i, largest] += difference[largest]
        models = trained.copy()
        for i in range(m):
            for j in range(m):
                models[i] += gamma * weights[i, j] * (public[j] - public[i])
    return {"models": models, "public": public}


def compressed(seed, graph=CYCLE, kept=3, bits=0, gamma=0.5, rounds=1, fresh=False, **more):
    case = trains(seed, graph=graph, lr=0.5, gamma=gamma, kept=0 if bits else kept, bits=bits, rounds=rounds, **more)
    case["draws"] = abs(Numbers(seed + 70).floats(*case["models"].shape)) * 15 / 16
    public = np.zeros_like(case["models"]) if fresh else case["models"] - trains(seed + 50)["models"] / 2
    return {**case, "public": public}


METHOD = Method(
    name="CHOCO-SGD",
    configs=["choco"],
    paper="Koloskova, Stich and Jaggi, Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication, ICML 2019, arXiv 1902.00340",
    equation="algorithm 2",
    does="A gradient step; q_i are the largest entries of the difference of x_i to its public copy, or all of them quantized as "
    "in QSGD and divided by 1 + min(d / s^2, sqrt(d) / s), d their number, and are added to the copy everywhere; then x_i moves by gamma sum_j w_ij (copy_j - copy_i), w Metropolis weights.",
    inputs={
        **MODEL,
        "models": f"before the first round, {ROWS}",
        "public": f"public copies before the first round, {ROWS}; zeros in the paper's",
        "x": "training data of each client, [batches, samples, inputs]",
        "y": "their classes, [batches, samples]",
        **GRAPH,
        **RATE,
        "gamma": "consensus step size",
        "kept": "entries of a difference that are sent; 0: all are quantized",
        "bits": "of a quantized entry, its sign included: s = 2^(bits - 1) - 1 levels of the length of the difference; 0: "
        "the largest are sent",
        "draws": f"uniform numbers from 0 to 1, {ROWS}, the same in all rounds: an entry is rounded up if its draw is below "
        "what is left of its level",
        "rounds": "how many",
    },
    outputs={"models": f"after the rounds, {ROWS}", "public": f"public copies after the rounds, {ROWS}"},
    readings=[ORDER, ("Entries of equal size", "the first ones are sent", "the paper does not say")],
    cases=[
        ("a first round", compressed(131, fresh=True)),
        ("a later round", compressed(132)),
        ("three rounds on a star", compressed(133, graph=STAR, gamma=0.25, rounds=3)),
        ("all entries and gamma 1: D-SGD", compressed(134, graph=others(5), kept=8, gamma=1.0, rounds=2)),
        ("4 bits", compressed(136, bits=4, fresh=True)),
        ("2 bits, three rounds on a star", compressed(137, graph=STAR, bits=2, gamma=0.25, rounds=3)),
        ("no neighbours", compressed(135, graph=np.zeros((5, 5), bool))),
    ],
    function=choco,
)
