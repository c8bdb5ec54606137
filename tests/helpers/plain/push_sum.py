"""Push-sum."""

import numpy as np

from plain.book import Method
from plain.neighbours import GRAPH, ORDER, ROWS, TRAINED, rows


def push_sum(models, held, trained, graph):
    m = len(models)
    numerators = held[:, None] * models + trained - models
    shares = np.zeros((m, m))
    for j in range(m):
        receivers = [j, *(i for i in range(m) if graph[i, j])]
        shares[receivers, j] = 1 / len(receivers)
    held = shares @ held
    return {"held": held, "models": shares @ numerators / held[:, None]}


ARCS = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]], bool)


def pushed(seed, held, graph=ARCS):
    case = rows(seed, 4)
    return {"trained": case["trained"], "held": np.array(held), "graph": graph, "models": case["before"]}


METHOD = Method(
    name="Push-sum",
    configs=["push_sum"],
    paper="Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019, arXiv 1811.10792",
    equation="algorithm 1",
    does="A client's numerator x = y z + (what training has changed of z) and number y are shared out equally among itself "
    "and its receivers; the new model is the sum of the x received over the sum of the y.",
    inputs={"models": f"z before the round, {ROWS}", "held": "y before the round, [m]", **TRAINED, **GRAPH},
    outputs={"held": "y after the round, [m]", "models": f"z after the round, {ROWS}"},
    main=["held", "models"],
    readings=[("Which shares?", "1 / (1 + number of receivers)", "they need nothing but that number"), ORDER],
    cases=[
        ("a first round", pushed(31, [1.0] * 4)),
        ("numbers that are not 1", pushed(32, [0.5, 1.25, 1.5, 0.75])),
        ("no links", pushed(33, [0.5, 1.25, 1.5, 0.75], np.zeros((4, 4), bool))),
    ],
    function=push_sum,
)
