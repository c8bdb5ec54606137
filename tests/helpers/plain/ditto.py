"""Ditto."""

from plain.book import Method
from plain.model import grad
from plain.server import AFTER, DATA, NO_MOMENTUM, RATE, ROUNDS, SERVER, averaged, batches, made, own_models


def ditto(layers, model, personal, x, y, lr, lam, rounds):
    personal = personal.copy()
    for _ in range(rounds):
        rows = []
        for i in range(len(x)):
            w, v = model.copy(), personal[i]
            for bx, by in batches(x[i], y[i]):
                w = w - lr * grad(w, bx, by, layers)
                v = v - lr * (grad(v, bx, by, layers) + lam * (v - model))
            rows.append(w)
            personal[i] = v
        model = averaged(rows, x)
    return {"model": model, "personal": personal}


def of_ditto(seed, m=3, lam=0.75, rounds=1, layers=(3, 2), **more):
    return {
        **made(seed, m, layers=layers, **more),
        "personal": own_models(seed, m, layers),
        "lam": lam,
        "rounds": rounds,
    }


METHOD = Method(
    name="Ditto",
    configs=["ditto"],
    paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221",
    equation="algorithm 1, eq. 2",
    does="w is trained and averaged as in FedAvg; on each batch the personal model v takes the step of its own loss plus "
    "lam / 2 ||v - w_t||^2, w_t the server's model at the start of the round.",
    inputs={
        **SERVER,
        "personal": "v of each client before the round, [m, P]",
        **DATA,
        **RATE,
        "lam": "lambda",
        **ROUNDS,
    },
    outputs={**AFTER, "personal": "v after the round, [m, P]"},
    main=["model", "personal"],
    readings=[
        ("How many steps has v?", "as many as w, on the same batches", "algorithm 1 leaves both numbers open"),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_ditto(21, m=1, count=1)),
        ("a round", of_ditto(22, count=[1, 3, 2])),
        ("two rounds", of_ditto(23, count=1, rounds=2)),
        ("lambda = 0: v trains alone", of_ditto(24, lam=0.0)),
        ("two layers", of_ditto(25, layers=(3, 2, 2))),
    ],
    function=ditto,
)
