"""AFIND+ (arXiv 2407.04460) as printed, with normalised entropies, losses averaged over rounds and personal heads."""

import math

import numpy as np

from plain.afind import INPUTS, PAPER, ROWS, printed
from plain.book import Method, Numbers
from plain.model import columns, cosine, grad, loss


def afind_rounds(
    layers, layer, before, trained, x, y, graph, probabilities, threshold, asked, nu, tau, gamma, temperature
):
    m, part, head = len(before), columns(layers, layer), columns(layers, len(layers) - 2)
    selected, weights, models = graph & (probabilities >= threshold[:, None]), np.zeros((m, m)), trained.copy()
    probabilities, asked, h = probabilities.copy(), asked.copy(), np.zeros(m)

    def of_both(rows, i, j):
        row = rows[i].copy()
        row[head] = rows[j][head]
        return row

    for i in range(m):
        chosen = [j for j in range(m) if selected[i, j]]
        mine = grad(before[i], x[i], y[i], layers)[part]
        similar = {j: cosine(mine, grad(of_both(before, i, j), x[j], y[j], layers)[part]) for j in chosen}
        refined = {j: (similar[j] + 1) / 2 for j in chosen}
        h[i] = -sum(e * math.log(e) for e in refined.values() if e > 0)
        left = 1 - sum(probabilities[i, j] for j in range(m) if graph[i, j] and j not in chosen)
        highest = max(similar.values(), default=0.0)
        raised = {j: math.exp((similar[j] - highest) / nu) for j in chosen}
        for j in chosen:
            probabilities[i, j] = left * raised[j] / sum(raised.values())
        for j in chosen:
            now = loss(of_both(trained, i, j), x[j], y[j], layers)
            asked[i, j] = now if math.isnan(asked[i, j]) else gamma * asked[i, j] + (1 - gamma) * now
        votes = {j: math.exp(-asked[i, j] / temperature) for j in chosen}
        for j in chosen:
            weights[i, j] = votes[j] / sum(votes.values())
        if chosen:
            models[i] = weights[i] @ trained
            models[i, head] = trained[i, head]
    theta = np.zeros(m)
    for i in range(m):
        known = [h[i], *(h[j] for j in range(m) if graph[i, j])]
        deviation = np.std(known)
        normal = (h[i] - np.mean(known)) / deviation if deviation > 1e-12 else 0.0
        theta[i] = tau * (1 - 1 / (1 + math.exp(-normal)))
    return {
        "selected": selected,
        "weights": weights,
        "models": models,
        "probabilities": probabilities,
        "threshold": theta,
        "asked": asked,
    }


def case(seed, threshold, met=(), **options):
    found = printed(seed, threshold, **options)
    m = len(found["before"])
    asked = np.full((m, m), np.nan)
    for i, j in met:
        asked[i, j] = 1 + Numbers(seed + i + 7 * j).floats(1)[0] / 2
    return {**found, "asked": asked, "gamma": 0.75}


PATH = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
METHOD = Method(
    name="AFIND+ as printed, over rounds, with personal heads",
    configs=["afind_literal --threshold.normalise true --aggregation.smooth rounds --model.shared [features.*]"],
    paper=PAPER,
    equation="algorithm 1; eq. 2, 8 to 16; section 3.3, the moving average of current and previous round losses",
    does="As AFIND+ as printed, with the last layer personal: a sender evaluates the receiver's shared part with its own "
    "last layer, losses are averaged over rounds, and entropies are normalised among neighbours before the sigmoid.",
    inputs={
        **INPUTS,
        "trained": f"models after local training, {ROWS}",
        "x": "training inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "probabilities": "p of the last round, [m, m]; they sum to 1 for each client",
        "threshold": "theta of the last round, [m]",
        "asked": "averaged losses of the receiver's models at the senders, [m, m]; null where it asked never before",
        "nu": "temperature of eq. 8",
        "tau": "of eq. 13",
        "temperature": "T of eq. 16",
        "gamma": "share of the average so far",
    },
    outputs={
        "selected": "neighbours with p_ij >= theta_i of the last round, [m, m]",
        "weights": "of the models in the average, [m, m]",
        "models": f"after the round, {ROWS}; the last layer is the one that the client has trained",
        "probabilities": "p for the next round, [m, m]",
        "threshold": "theta for the next round, [m]",
        "asked": "averaged losses for the next round, [m, m]",
    },
    readings=[
        (
            "How is H normalised in eq. 11?",
            "h_i is replaced by how many standard deviations (of the population) it is above the mean of its own and its "
            "neighbours'; 0 if all are equal",
            "the paper does not say which normalisation it is",
        ),
        (
            "With which last layer is F_j(w_i, beta_j) computed, and the gradient at w_i?",
            "the sender's: the trained one for the loss, the one before the round for the gradient",
            "beta_j belongs to the sender in eq. 14 and in lines 7 and 8",
        ),
        (
            "What is the average of current and previous round losses?",
            "gamma times the average so far plus (1 - gamma) times this round's loss; the first one is the loss",
            "text and eq. 15 differ; this is the text",
        ),
    ],
    cases=[
        ("the first round: none has asked", case(41, [0, 0, 0, 0])),
        ("some are selected, some were asked", case(42, [0.3, 0.35, 0.2, 0.33], met=[(0, 1), (1, 0), (2, 0), (2, 3)])),
        ("one selects none", case(43, [1.1, 0.2, 0.3, 0.0], met=[(1, 2), (3, 0)])),
        ("a path", case(44, [0.0, 0.4, 0.1], m=3, graph=PATH, met=[(1, 0), (2, 1)])),
    ],
    function=afind_rounds,
)
