"""FedeRiCo whole."""

import math

import numpy as np

from plain import federico
from plain.book import Method
from plain.model import MODEL, grad, loss
from plain.neighbours import CYCLE, DATA, RATE, ROWS, STAR, averages, trains


def federico_em(layers, models, x, y, fetched, averages, beta, lr, rounds):
    m = len(models)
    averages = averages.copy()
    for _ in range(rounds):
        weights, new = np.zeros((m, m)), models.copy()
        for i in range(m):
            mine = [*(j for j in range(m) if fetched[i, j]), i]
            for j in mine:
                now, old = loss(models[j], x[i][0], y[i][0], layers), averages[i, j]
                averages[i, j] = now if math.isnan(old) else (1 - beta) * old + beta * now
            raised = {j: math.exp(-averages[i, j]) for j in mine}
            for j, number in raised.items():
                weights[i, j] = number / sum(raised.values())
                new[j] = new[j] - weights[i, j] * lr * grad(models[j], x[i][0], y[i][0], layers)
        models = new
    return {"averages": averages, "weights": weights, "models": models}


METHOD = Method(
    name="FedeRiCo whole",
    configs=["federico_em"],
    paper=federico.METHOD.paper,
    equation="algorithm 1: E-step and M-step",
    does="E-step: w_i = softmax(-L_i) over the fetched models and the own one, L the moving average of their losses on the "
    "client's data. M-step: model j moves by the sum over i of w_ij times the step of model j on the data of i.",
    inputs={
        **MODEL,
        "models": f"before the first round, {ROWS}",
        **DATA,
        "fetched": "whose models a client fetches and sends back steps of, [m, m]",
        "averages": "L before the first round, [m, m]; null: not seen yet",
        "beta": "weight of this round's loss",
        **RATE,
        "rounds": "how many",
    },
    outputs={
        "averages": "L after the rounds, [m, m]",
        "weights": "of the last round, [m, m]",
        "models": f"after the rounds, {ROWS}",
    },
    readings=[
        ("Over which models do weights sum to 1?", "the fetched ones and the own one", "others are not improved"),
        ("Which losses?", "of the models before the round", "the E-step comes before the M-step"),
    ],
    cases=[
        (
            "a first round",
            trains(55, samples=4, fetched=CYCLE, averages=np.full((5, 5), np.nan), beta=0.6, lr=0.25, rounds=1),
        ),
        (
            "a later round on a star",
            trains(56, fetched=STAR, averages=averages(56, 5, [(0, 1), (2, 2)]), beta=0.6, lr=0.5, rounds=1),
        ),
        (
            "three rounds from the start",
            trains(57, samples=4, fetched=CYCLE, averages=np.full((5, 5), np.nan), beta=0.3, lr=0.5, rounds=3),
        ),
        (
            "two rounds, two layers",
            trains(58, layers=(2, 3, 2), fetched=STAR, averages=np.full((5, 5), np.nan), beta=0.6, lr=0.5, rounds=2),
        ),
    ],
    function=federico_em,
)
