"""FedRep."""

import numpy as np

from plain.book import Method
from plain.model import columns, grad, size
from plain.server import AFTER_PARTS, NO_MOMENTUM, PARTS, averaged, batches, parted


def fedrep(layers, body, heads, x, y, lr, head_epochs, body_epochs):
    heads, at = heads.copy(), columns(layers, len(layers) - 2)
    head = np.isin(np.arange(size(layers)), at)
    rows = []
    for i in range(len(x)):
        w = np.concatenate([body, heads[i]])
        for bx, by in batches(x[i], y[i], head_epochs):
            w = w - lr * head * grad(w, bx, by, layers)
        for bx, by in batches(x[i], y[i], body_epochs):
            w = w - lr * ~head * grad(w, bx, by, layers)
        heads[i] = w[head]
        rows.append(w[~head])
    return {"body": averaged(rows, x), "heads": heads}


METHOD = Method(
    name="FedRep",
    configs=["fedrep"],
    paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv 2102.07078",
    equation="algorithm 1",
    does="A client trains its head with the body of the server frozen, then the body with the new head frozen; bodies "
    "are averaged, heads stay.",
    inputs={**PARTS, "head_epochs": "epochs of the head", "body_epochs": "epochs of the body"},
    outputs=AFTER_PARTS,
    readings=[
        ("How are bodies averaged?", "by numbers of samples", "the paper has clients of equal sizes; so does FedAvg"),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step each of one client", parted(51, m=1, head_epochs=1, body_epochs=1)),
        ("a round", parted(52, head_epochs=3, body_epochs=1)),
        ("the body twice, three layers", parted(53, layers=(2, 3, 2, 2), head_epochs=2, body_epochs=2)),
        ("no epoch of the head", parted(54, head_epochs=0, body_epochs=1)),
    ],
    function=fedrep,
)
