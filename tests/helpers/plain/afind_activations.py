"""AFIND+ (arXiv 2407.04460) with the mean output of the featurizer as a client's proxy."""

import math

import numpy as np

from plain.afind import PAPER, ROWS, made
from plain.book import Method
from plain.model import MODEL, cosine, forward


def afind_activations(layers, before, trained, x, y, graph, active, k, nu):
    m = len(before)
    proxies = [forward(trained[i], x[i], layers)[0][-1].mean(0) for i in range(m)]
    cosines, ratio = np.full((m, m), np.nan), np.full((m, m), np.nan)
    selected, models = np.zeros((m, m), bool), before.copy()
    for i in range(m):
        if not active[i]:
            continue
        near = [j for j in range(m) if graph[i, j] and active[j]]
        centre = np.mean([proxies[j] for j in [*near, i]], 0)
        for j in near:
            cosines[i, j] = cosine(proxies[i] - centre, proxies[j] - centre)
        raised = {j: math.exp(cosines[i, j] / nu) for j in near}
        for j in near:
            ratio[i, j] = len(near) * raised[j] / sum(raised.values())
        chosen = sorted(near, key=lambda j: (-ratio[i, j], j))[:k]
        selected[i, chosen] = True
        models[i] = np.mean(trained[[*chosen, i]], 0)
    return {"cosines": cosines, "ratio": ratio, "selected": selected, "models": models}


def case(seed, m=5, k=2, nu=0.2, **options):
    found = made(seed, m, nu=nu, **options)
    return {name: found[name] for name in ("layers", "before", "trained", "x", "y", "graph", "active", "nu")} | {"k": k}


METHOD = Method(
    name="AFIND+ by activations",
    configs=["afind --selection.proxy activations"],
    paper=PAPER,
    equation="section 1, the output of a featurizer as a proxy; eq. 8",
    does="A client compares the mean output of its trained featurizer on its training data with its neighbours', and "
    "averages the models of the k most similar ones and its own with equal weights.",
    inputs={
        **MODEL,
        "before": f"models before the round, {ROWS}",
        "trained": f"models after local training, {ROWS}",
        "x": "training inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "active": "who is active, [m]",
        "nu": "temperature of eq. 8",
        "k": "neighbours to choose",
    },
    outputs={
        "cosines": "of the mean inputs of the last layer, less their mean over the active neighbours and the client "
        "itself, [m, m]; null where there is no active neighbour",
        "ratio": "n_i p_ij of eq. 8, [m, m]; null where there is no active neighbour",
        "selected": "the k most similar; of equals the lowest number, [m, m]",
        "models": f"after the round, {ROWS}; one that has dropped out keeps its own",
    },
    readings=[
        (
            "Section 1 names the output of a featurizer as the proxy, section 3.2 its output layer",
            "the mean over a client's training samples of the inputs of the last layer, by its trained model",
            "this is the first of the two; the other is in the cases of AFIND+",
        )
    ],
    cases=[
        ("five clients of two kinds", case(31)),
        ("one has dropped out", case(32, active=[1, 1, 0, 1, 1])),
        ("a path", case(33, m=3, k=1, graph=[[0, 1, 0], [1, 0, 1], [0, 1, 0]])),
        ("all are taken, at a low temperature", case(34, m=4, k=9, nu=0.05)),
    ],
    function=afind_activations,
)
