"""QG-DSGDm."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, grad
from plain.neighbours import CYCLE, RATE, ROWS, STAR, UNDIRECTED, metropolis, trains


def qg_dsgdm(layers, models, momentum, x, y, graph, lr, beta, mu, nesterov, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for bx, by in zip(x[i], y[i], strict=True):
                g = grad(trained[i], bx, by, layers)
                step = beta * momentum[i] + g
                trained[i] = trained[i] - lr * (g + beta * step if nesterov else step)
        after = weights @ trained
        change = (models - after) / (lr * np.array([len(part) for part in x]))[:, None]
        momentum, models = mu * momentum + (1 - mu) * change, after
    return {"models": models, "momentum": momentum}


def quasi_global(seed, graph=CYCLE, momentum=True, beta=0.75, mu=0.75, nesterov=False, rounds=1, **more):
    case = trains(
        seed, **{"graph": graph, "lr": 0.25, "beta": beta, "mu": mu, "nesterov": nesterov, "rounds": rounds, **more}
    )
    return {**case, "momentum": Numbers(seed + 50).floats(*case["models"].shape) * momentum}


METHOD = Method(
    name="QG-DSGDm",
    configs=["qg_dsgdm"],
    paper="Lin, Karimireddy, Stich and Jaggi, Quasi-Global Momentum, ICML 2021, arXiv 2102.04761",
    equation="algorithm 1",
    does="Steps follow beta m + g; models are mixed by W; the buffer m becomes mu m + (1 - mu) (x before - x after the "
    "mixing) / lr.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "momentum": f"m before the round, {ROWS}",
        **UNDIRECTED,
        **RATE,
        "beta": "weight of m in a step",
        "mu": "weight of the former m in the new one",
        "nesterov": "steps follow g + beta (beta m + g): QG-DSGDm-N",
        "rounds": "how many rounds",
    },
    outputs={"models": f"after the rounds, {ROWS}", "momentum": f"m after the rounds, {ROWS}"},
    readings=[
        (
            "The change of a round with several local steps",
            "it is divided by lr and by the client's own number of steps",
            "the algorithm has one step",
        )
    ],
    cases=[
        ("a first round", quasi_global(101, momentum=False)),
        ("three rounds", quasi_global(102, rounds=3, mu=0.5)),
        ("two steps on a star", quasi_global(103, graph=STAR, count=2)),
        ("Nesterov's step", quasi_global(104, nesterov=True)),
    ],
    function=qg_dsgdm,
)
