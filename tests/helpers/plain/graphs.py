"""Graphs that change from round to round: one-peer exponential graphs, Base-(k+1) graphs, Epidemic Learning."""

import math

import numpy as np

from plain.base_graph import base_graph
from plain.book import Method, Numbers

ROWS = "[m, P], a row for each client"
SELF = (
    "What does a client do that nobody sends to?",
    "it keeps its own model",
    "the average over itself and what it has received",
)


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


def epidemic(trained, sends):
    m = len(trained)
    weights, models = np.zeros((m, m)), np.zeros_like(trained)
    for i in range(m):
        received = [j for j in range(m) if sends[j, i]]
        for j in [i, *received]:
            weights[i, j] = 1 / (len(received) + 1)
            models[i] += weights[i, j] * trained[j]
    return {"weights": weights, "models": models}


def averaged(seed, m, round=0, rounds=1, width=4):
    return {"models": Numbers(seed).floats(m, width, size=2), "round": round, "rounds": rounds}


def based(seed, m, k, width=4):
    return {"models": Numbers(seed).floats(m, width, size=2), "k": k}


def sent(seed, m, s, width=4):
    numbers = Numbers(seed)
    sends = np.zeros((m, m), bool)
    for j in range(m):
        sends[j, numbers.random.sample([i for i in range(m) if i != j], s)] = True
    return {"trained": numbers.floats(m, width, size=2), "sends": sends}


def linked(seed, links, m, width=4):
    sends = np.zeros((m, m), bool)
    for i, j in links:
        sends[i, j] = sends[j, i] = True
    return {"trained": Numbers(seed).floats(m, width, size=2), "sends": sends}


ONE_PEER = Method(
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
BASE_GRAPH = Method(
    name="Base-(k+1) graph",
    configs=["base_graph"],
    paper="Takezawa et al., Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via Finite-time Convergence, NeurIPS 2023, arXiv 2305.11420",
    equation="algorithms 1 to 3, theorem 1",
    does="A sequence of symmetric mixing matrices with at most k neighbours in each round, after which all clients have the "
    "exact mean of their models, for any number of clients.",
    inputs={"models": f"before the first round, {ROWS}; none trains", "k": "the largest number of neighbours"},
    outputs={
        "rounds": "until all have the mean",
        "degree": "the largest number of neighbours of a client in one of them",
        "models": f"after these rounds, {ROWS}",
    },
    readings=[
        (
            "Which of several free nodes is linked, and how are clients numbered?",
            "not tested: outputs are those of all such graphs",
            "the paper leaves it open",
        ),
        ("Into which factors is a number split?", "as few as there can be", "the paper's minimal L"),
        (
            "Algorithm 2 or 3 where both take as many rounds?",
            "not tested: outputs are the same",
            "the paper asks for the shorter one",
        ),
    ],
    cases=[
        ("five, one neighbour", based(121, 5, 1)),
        ("eight, one neighbour: a hypercube", based(122, 8, 1)),
        ("seven, two neighbours", based(123, 7, 2)),
        ("twelve, four neighbours", based(124, 12, 4)),
        ("fourteen, one neighbour: two graphs of seven", based(125, 14, 1)),
        ("six, all others", based(126, 6, 5)),
    ],
    function=base_graph,
)
EPIDEMIC = Method(
    name="Epidemic Learning (EL-Oracle, EL-Local)",
    configs=["epidemic", "epidemic --topology el_oracle"],
    paper="de Vos et al., Epidemic Learning: Boosting Decentralized Learning with Randomized Communication, NeurIPS 2023, arXiv 2310.01972",
    equation="algorithm 1",
    does="Each client sends its model to s others, drawn anew in each round (EL-Local), or exchanges models with s others "
    "by a random regular graph (EL-Oracle); it averages its own model and what it has received.",
    inputs={
        "trained": f"models after local training, {ROWS}",
        "sends": "who sends to whom, [m, m], sender by receiver",
    },
    outputs={"weights": "[m, m], receiver by sender", "models": f"after the round, {ROWS}"},
    readings=[SELF],
    cases=[
        ("EL-Local, two each", sent(111, 6, 2)),
        ("EL-Local, one each", sent(112, 5, 1)),
        ("EL-Local, all others", sent(113, 4, 3)),
        ("EL-Oracle, a cycle", linked(114, [(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)], 5)),
    ],
    function=epidemic,
)
