"""BALANCE."""

import math

import numpy as np

from plain.book import Method
from plain.robust_rounds import INPUTS, ITSELF, OUTPUTS, attacked, rounds


def balance(before, trained, sent, graph, active, gamma, kappa, alpha, round, rounds_of_run):
    def mix(i, near, received):
        limit = gamma * math.exp(-kappa * round / rounds_of_run) * np.linalg.norm(trained[i])
        accepted = [math.dist(trained[i], row) <= limit for row in received]
        if not any(accepted):
            return 1.0, [0.0] * len(near)
        return alpha, [(1 - alpha) * a / sum(accepted) for a in accepted]

    return rounds(before, trained, sent, graph, active, mix)


METHOD = Method(
    name="BALANCE",
    configs=["dsgd --aggregation BALANCE"],
    paper="Fang et al., Byzantine-Robust Decentralized Federated Learning, CCS 2024, arXiv 2406.10416",
    equation="algorithm 1, eq. 3 and 4",
    does="A client accepts neighbours within gamma exp(-kappa t / T) |w_i|; its model becomes alpha w_i + (1 - alpha) times "
    "the mean of those accepted.",
    inputs={
        **INPUTS,
        "gamma": "distance that is accepted at first, in units of the norm of the own model",
        "kappa": "how fast it shrinks",
        "alpha": "weight of the own model",
        "round": "t, from 0",
        "rounds_of_run": "T",
    },
    outputs=OUTPUTS,
    readings=[("What if a client accepts no model?", "it keeps its own", "a mean of nothing is not defined"), ITSELF],
    cases=[
        ("a first round", attacked(211, gamma=0.75, kappa=1.0, alpha=0.5, round=0, rounds_of_run=10)),
        ("a late round accepts less", attacked(211, gamma=0.75, kappa=1.0, alpha=0.25, round=9, rounds_of_run=10)),
        (
            "a client keeps more than its neighbours give, weights that float32 does not hold",
            attacked(215, gamma=1.0, kappa=0.1, alpha=0.7, round=1, rounds_of_run=7),
        ),
        ("alpha 1 keeps the own model", attacked(216, gamma=1.0, kappa=1.0, alpha=1.0, round=0, rounds_of_run=10)),
        ("nothing is accepted", attacked(213, gamma=0.0625, kappa=1.0, alpha=0.5, round=0, rounds_of_run=10)),
        (
            "two have dropped out",
            attacked(
                214,
                active=[True, False, True, True, False],
                **{"gamma": 1.0, "kappa": 0.0, "alpha": 0.5, "round": 3, "rounds_of_run": 4},
            ),
        ),
    ],
    function=balance,
)
