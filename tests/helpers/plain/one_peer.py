"""One-peer exponential graph."""

import math

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import ROWS


def one_peer(models, round, rounds):
    m = len(models)
    period = max(1, math.ceil(math.log2(m)))
    for t in range(round, round + rounds):
        weights = np.zeros((m, m))
        for i in range(m):
            weights[i, i] += 1 / 2
            weights[i, (i + 2 ** (t % period)) % m] += 1 / 2
        models = weights @ models
    return {"weights": weights, "models": models}


def averaged(seed, m, round=0, rounds=1, width=4):
    return {"models": Numbers(seed).floats(m, width, size=2), "round": round, "rounds": rounds}


METHOD = Method(
    name="One-peer exponential graph",
    configs=["one_peer"],
    paper="Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS 2021, arXiv 2110.13363",
    equation="eq. 7, lemma 1",
    does="In round t client i averages its model and that of client i + 2^(t mod ceil(log2 m)) modulo m.",
    inputs={
        "models": f"before the first of the rounds, {ROWS}; none trains",
        "round": "number of the first round, from 0",
        "rounds": "how many",
    },
    outputs={"weights": "of the last round, [m, m]", "models": f"after the rounds, {ROWS}"},
    readings=[("Does i receive from i + 2^t, or send to it?", "it receives", "w_ij is the weight of j at i")],
    cases=[
        ("a round of five", averaged(101, 5)),
        ("eight: the mean after three rounds", averaged(102, 8, rounds=3)),
        ("eight, from the second round on: the mean", averaged(103, 8, round=1, rounds=3)),
        ("six: three rounds are no mean", averaged(104, 6, round=3, rounds=3)),
        ("two", averaged(105, 2)),
    ],
    function=one_peer,
)
