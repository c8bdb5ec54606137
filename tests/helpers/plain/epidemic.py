"""Epidemic Learning (EL-Oracle, EL-Local)."""

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import ROWS

SELF = (
    "What does a client do that receives no model?",
    "it keeps its own model",
    "the average over itself and what it has received",
)


def epidemic(trained, sends):
    m = len(trained)
    weights, models = np.zeros((m, m)), np.zeros_like(trained)
    for i in range(m):
        received = [j for j in range(m) if sends[j, i]]
        for j in [i, *received]:
            weights[i, j] = 1 / (len(received) + 1)
            models[i] += weights[i, j] * trained[j]
    return {"weights": weights, "models": models}


def sent(seed, m, s, width=4):
    numbers = Numbers(seed)
    sends = np.zeros((m, m), bool)
    for j in range(m):
        sends[j, numbers.random.sample([i for i in range(m) if i != j], s)] = True
    return {"trained": numbers.floats(m, width, size=2), "sends": sends}


def linked(seed, links, m, width=4):
    sends = np.zeros((m, m), bool)
    for i, j in links:
        sends[i, j] = sends[j, i] = True
    return {"trained": Numbers(seed).floats(m, width, size=2), "sends": sends}


METHOD = Method(
    name="Epidemic Learning (EL-Oracle, EL-Local)",
    configs=["epidemic", "epidemic --topology el_oracle"],
    paper="de Vos et al., Epidemic Learning: Boosting Decentralized Learning with Randomized Communication, NeurIPS 2023, arXiv 2310.01972",
    equation="algorithm 1",
    does="Each client sends its model to s others, drawn anew in each round (EL-Local), or exchanges models with s others "
    "by a random regular graph (EL-Oracle); it averages its own model and what it has received.",
    inputs={
        "trained": f"models after local training, {ROWS}",
        "sends": "who sends to whom, [m, m], sender by receiver",
    },
    outputs={"weights": "[m, m], receiver by sender", "models": f"after the round, {ROWS}"},
    readings=[SELF],
    cases=[
        ("EL-Local, two each", sent(111, 6, 2)),
        ("EL-Local, one each", sent(112, 5, 1)),
        ("EL-Local, all others", sent(113, 4, 3)),
        ("EL-Oracle, a cycle", linked(114, [(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)], 5)),
    ],
    function=epidemic,
)
