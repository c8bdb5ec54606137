"""IFCA."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, grad, loss, size
from plain.server import DATA, EPOCHS, RATE, batches, made


def ifca(layers, models, x, y, lr, epochs):
    flat = [(a.reshape(-1, a.shape[-1]), b.ravel()) for a, b in zip(x, y, strict=True)]
    losses = np.array([[loss(model, *own, layers) for model in models] for own in flat])
    chosen, new = losses.argmin(1), models.copy()
    rows = []
    for i in range(len(x)):
        w = models[chosen[i]].copy()
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        rows.append(w)
    for k in range(len(models)):
        mine = [rows[i] for i in range(len(x)) if chosen[i] == k]
        if mine:
            new[k] = np.mean(mine, 0)
    return {"losses": losses, "chosen": chosen, "models": new}


def clustered(seed, m=4, c=2, layers=(3, 2), equal=False, epochs=1):
    case = made(seed, m, 1, layers, epochs=epochs)
    del case["model"]
    models = Numbers(seed + 100).floats(c, size(layers), size=2)
    if equal:
        models[1] = models[0]
    return {**case, "models": models}


METHOD = Method(
    name="IFCA",
    configs=["ifca"],
    paper="Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, arXiv 2006.04088",
    equation="algorithm 1, option II (model averaging)",
    does="Each client trains the cluster model with the lowest loss on its training data; each cluster model becomes the "
    "mean of those that were trained from it.",
    inputs={**MODEL, "models": "of the clusters, [c, P]", **DATA, **RATE, **EPOCHS},
    outputs={
        "losses": "of each cluster's model on each client's data, [m, c]",
        "chosen": "the cluster of each client, [m]",
        "models": "of the clusters after the round, [c, P]",
    },
    readings=[
        ("What if no client chooses a cluster?", "its model stays", "an average of nothing is not defined"),
        ("Two models have the same loss", "the first one is chosen", "the paper takes the argmin"),
        ("Do clients count by their samples?", "no, equally", "line 13 of the algorithm"),
    ],
    cases=[
        ("a round", clustered(71)),
        ("three clusters, two epochs", clustered(72, m=6, c=3, epochs=2)),
        ("equal models: all choose the first", clustered(73, equal=True)),
        ("one client, one cluster", clustered(74, m=1, c=1)),
    ],
    function=ifca,
)
