"""FedPer."""

import numpy as np

from plain.book import Method
from plain.model import grad
from plain.server import AFTER_PARTS, EPOCHS, PARTS, averaged, batches, parted


def fedper(layers, body, heads, x, y, lr, epochs):
    heads, rows = heads.copy(), []
    for i in range(len(x)):
        w = np.concatenate([body, heads[i]])
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        heads[i] = w[len(body) :]
        rows.append(w[: len(body)])
    return {"body": averaged(rows, x), "heads": heads}


METHOD = Method(
    name="FedPer",
    configs=[],
    paper="Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818",
    equation="algorithms 1 and 2",
    does="A client trains head and body together; bodies are averaged, heads stay.",
    inputs={**PARTS, **EPOCHS},
    outputs=AFTER_PARTS,
    readings=[],
    cases=[
        ("one step of one client", parted(61, m=1, epochs=1)),
        ("a round", parted(62, count=[1, 2, 3], epochs=1)),
        ("three layers, two epochs", parted(63, layers=(2, 3, 2, 2), epochs=2)),
    ],
    function=fedper,
)
