"""FedProx."""

from plain.book import Method
from plain.model import grad
from plain.server import AFTER, DATA, RATE, SERVER, averaged, batches, made


def fedprox(layers, model, x, y, lr, mu):
    rows = []
    for i in range(len(x)):
        w = model.copy()
        for bx, by in batches(x[i], y[i]):
            w = w - lr * (grad(w, bx, by, layers) + mu * (w - model))
        rows.append(w)
    return {"model": averaged(rows, x)}


METHOD = Method(
    name="FedProx",
    configs=[],
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127",
    equation="eq. 2, algorithm 2",
    does="Clients descend f(w) + mu / 2 ||w - w_t||^2, w_t the server's model at the start of the round.",
    inputs={**SERVER, **DATA, **RATE, "mu": "weight of the term"},
    outputs=AFTER,
    readings=[
        (
            "How is the sum weighted?",
            "clients are averaged by numbers of samples",
            "the paper samples clients by them and averages equally, which has the same mean",
        )
    ],
    cases=[
        ("two steps of one client", made(11, m=1, mu=0.5)),
        ("a round", made(12, count=[1, 3, 2], mu=0.5)),
        ("mu = 0 is FedAvg", made(12, count=[1, 3, 2], mu=0.0)),
        ("two layers", made(13, count=3, layers=(2, 3, 2), mu=2.0)),
    ],
    function=fedprox,
)
