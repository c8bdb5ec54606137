"""FedAvg."""

from plain.book import Method
from plain.model import grad
from plain.server import AFTER, DATA, EPOCHS, RATE, SERVER, averaged, batches, made


def fedavg(layers, model, x, y, active, lr, epochs):
    rows, mine = [], [i for i in range(len(x)) if active[i]]
    for i in mine:
        w = model.copy()
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        rows.append(w)
    return {"model": averaged(rows, [x[i] for i in mine]) if mine else model}


METHOD = Method(
    name="FedAvg",
    configs=["fedavg", "fedavg --selection.k 5", "fedavg_ft"],
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, arXiv 1602.05629",
    equation="algorithm 1",
    does="The clients that take part train the server's model; the server averages what they return by numbers of "
    "samples. The rounds of FedAvg-FT are the same.",
    inputs={**SERVER, **DATA, "active": "who takes part, [m]: those that the server has sampled", **RATE, **EPOCHS},
    outputs=AFTER,
    readings=[
        (
            "What are the weights of models if a part of the clients takes part?",
            "n_k over the samples of those that take part",
            "the last version of the paper says m_t, the first one n; only the former has weights that sum to 1",
        ),
        ("What if no client takes part?", "the model stays", "an average of nothing is not defined"),
    ],
    cases=[
        ("one step of one client", made(1, m=1, count=1, active=[True], epochs=1)),
        ("a round of clients of different sizes", made(2, count=[1, 3, 2], active=[True] * 3, epochs=1)),
        ("some take part", made(3, m=4, count=[2, 1, 3, 1], active=[True, False, True, False], epochs=1)),
        ("none takes part", made(4, active=[False] * 3, epochs=1)),
        ("three epochs, two layers", made(5, count=1, layers=(3, 2, 3), active=[True] * 3, epochs=3)),
    ],
    function=fedavg,
)
