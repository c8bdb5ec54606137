"""PENS."""

import numpy as np

from plain.book import Method, others
from plain.model import MODEL, loss
from plain.neighbours import CYCLE, ORDER, OWN, ROWS, TRAINED, judged


def pens(layers, trained, x, y, sampled, top, stage_one, counts):
    m = len(trained)
    losses, chosen, models = np.full((m, m), np.nan), np.zeros((m, m), bool), trained.copy()
    for i in range(m):
        drawn = [j for j in range(m) if sampled[i, j]]
        for j in drawn:
            losses[i, j] = loss(trained[j], x[i], y[i], layers)
        best = sorted(drawn, key=lambda j: losses[i, j])[:top]
        chosen[i, best] = True
        models[i] = np.mean(trained[[i, *best]], 0)
    counts = counts + chosen
    return {
        "losses": losses,
        "chosen": chosen,
        "counts": counts,
        "peers": counts > top * stage_one / (m - 1) + 1e-9,
        "models": models,
    }


COUNTED = np.array([[0, 4, 1, 3, 0], [2, 0, 2, 2, 2], [5, 0, 0, 3, 0], [1, 3, 2, 0, 2], [0, 0, 4, 4, 0]])

METHOD = Method(
    name="PENS",
    configs=["pens"],
    paper="Onoszko et al., Decentralized Federated Learning of Deep Neural Networks on Non-iid Data, arXiv 2107.08517",
    equation="algorithm 1",
    does="The last round of stage one: of the sampled clients, those with the lowest loss on the client's training data "
    "are averaged and counted. Peers of stage two are those chosen more often than expected.",
    inputs={
        **MODEL,
        **TRAINED,
        **OWN,
        "sampled": "whose models a client evaluates, [m, m]",
        "top": "how many of them it learns from",
        "stage_one": "rounds of stage one",
        "counts": "how often a client has chosen each other one before this round, [m, m]",
    },
    outputs={
        "losses": "[m, m], client by sender; null where it is not sampled",
        "chosen": "[m, m]",
        "counts": "after the round, [m, m]",
        "peers": "who will be peers in stage two, [m, m]",
        "models": f"after the round, {ROWS}",
    },
    readings=[
        (
            "The limit is 'the expected amount of times'",
            "top stage_one / (m - 1): under random choice among the others",
            "sources define it differently",
        ),
        ORDER,
    ],
    cases=[
        (
            "three are sampled",
            judged(41, sampled=np.roll(others(5) & ~CYCLE.T | CYCLE, 0), top=2, stage_one=8, counts=COUNTED),
        ),
        ("the best of two", judged(42, sampled=CYCLE, top=1, stage_one=8, counts=COUNTED)),
        ("more wanted than sampled", judged(43, sampled=CYCLE, top=3, stage_one=8, counts=COUNTED)),
    ],
    function=pens,
)
