"""FedeRiCo, the sampler."""

import math

import numpy as np

from plain.book import Method, others
from plain.model import MODEL, loss
from plain.neighbours import CYCLE, OWN, ROWS, TRAINED, averages, judged


def federico(layers, trained, x, y, fetched, averages, beta):
    m = len(trained)
    averages, weights, models = averages.copy(), np.zeros((m, m)), trained.copy()
    for i in range(m):
        seen = [j for j in range(m) if fetched[i, j]]
        if not seen:
            weights[i, i] = 1.0
            continue
        for j in [*seen, i]:
            new, old = loss(trained[j], x[i], y[i], layers), averages[i, j]
            averages[i, j] = new if math.isnan(old) else (1 - beta) * old + beta * new
        raised = {j: math.exp(-averages[i, j]) for j in [*seen, i]}
        for j, number in raised.items():
            weights[i, j] = number / sum(raised.values())
        models[i] = weights[i] @ trained
    return {"averages": averages, "weights": weights, "models": models}


METHOD = Method(
    name="FedeRiCo, the sampler",
    configs=["federico"],
    paper="Sui et al., Find Your Friends: Personalized Federated Learning with the Right Collaborators, arXiv 2210.06597",
    equation="section 3: eq. for the weights, and the moving average of the losses",
    does="L is the moving average of the losses of others' models on the client's data; the fetched models and the own "
    "one are averaged by softmax(-L).",
    inputs={
        **MODEL,
        **TRAINED,
        **OWN,
        "fetched": "whose models a client fetches, [m, m]",
        "averages": "L before the round, [m, m]; null: not seen yet",
        "beta": "weight of this round's loss",
    },
    outputs={"averages": "L after the round, [m, m]", "weights": "[m, m]", "models": f"after the round, {ROWS}"},
    readings=[
        ("Where does the moving average start?", "at the first loss", "the paper does not say"),
        (
            "What is done with the weights?",
            "models are averaged, not predictions",
            "AFIND+ uses it as a sampler in this way; the whole method is another one",
        ),
    ],
    cases=[
        ("a first round", judged(51, fetched=CYCLE, averages=np.full((5, 5), np.nan), beta=0.6)),
        ("a later round", judged(52, fetched=CYCLE, averages=averages(52, 5, [(0, 1), (2, 2)]), beta=0.6)),
        ("the last loss alone", judged(53, fetched=others(5), averages=averages(53, 5, []), beta=1.0)),
        (
            "one fetches none",
            judged(54, fetched=CYCLE & (np.arange(5) > 0)[:, None], averages=averages(54, 5, []), beta=0.6),
        ),
    ],
    function=federico,
)
