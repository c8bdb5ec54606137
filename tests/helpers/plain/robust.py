"""Averages that bear wrong models: ClippedGossip, BALANCE, Krum and Multi-Krum, the geometric median."""

import math

import numpy as np

from plain.book import Method, Numbers, others
from plain.mixed import ACTIVE, CYCLE, ROWS, STAR, metropolis


def rounds(before, trained, sent, graph, active, mix):
    """The weights and models of all clients; `mix(i, neighbours, what they sent)` gives own weight, theirs."""
    m = len(before)
    weights, models = np.zeros((m, m)), before.copy()
    for i in range(m):
        if active[i]:
            near = [j for j in range(m) if graph[i, j] and active[j]]
            weights[i, i], weights[i, near] = mix(i, near, sent[near])
            models[i] = weights[i, i] * trained[i] + weights[i, near] @ sent[near]
    return {"weights": weights, "models": models}


def clipped_gossip(before, trained, sent, graph, active, outliers, radius):
    shares = metropolis(graph, active)

    def mix(i, near, received):
        far = [math.dist(trained[i], row) for row in received]
        tau = radius if radius else (sorted(far)[max(0, len(far) - 1 - outliers)] if far else 0.0)
        kept = [shares[i, j] * (min(1.0, tau / d) if d > 0 else 1.0) for j, d in zip(near, far, strict=True)]
        return 1 - sum(kept), kept

    return rounds(before, trained, sent, graph, active, mix)


def balance(before, trained, sent, graph, active, gamma, kappa, alpha, round, rounds_of_run):
    def mix(i, near, received):
        limit = gamma * math.exp(-kappa * round / rounds_of_run) * np.linalg.norm(trained[i])
        accepted = [math.dist(trained[i], row) <= limit for row in received]
        if not any(accepted):
            return 1.0, [0.0] * len(near)
        return alpha, [(1 - alpha) * a / sum(accepted) for a in accepted]

    return rounds(before, trained, sent, graph, active, mix)


def krum(before, trained, sent, graph, active, adversaries, kept):
    def mix(i, near, received):
        ids = sorted([i, *near])
        models = [trained[i] if j == i else received[near.index(j)] for j in ids]
        n = len(ids)
        if n < 2 * adversaries + 3:
            return 1.0, [0.0] * len(near)
        scores = []
        for a in range(n):
            apart = sorted(float(((models[a] - models[b]) ** 2).sum()) for b in range(n) if b != a)
            scores.append(sum(apart[: n - adversaries - 2]))
        best = sorted(range(n), key=lambda a: (scores[a], a))[: min(kept, n) if kept else n - adversaries]
        share = {ids[a]: 1 / len(best) for a in best}
        return share.get(i, 0.0), [share.get(j, 0.0) for j in near]

    return rounds(before, trained, sent, graph, active, mix)


def geometric_median(before, trained, sent, graph, active, smoothing, iterations):
    def mix(i, near, received):
        models = np.vstack([trained[i], received])
        shares = np.full(len(models), 1 / len(models))
        for _ in range(iterations):
            beta = 1 / np.maximum(smoothing, np.linalg.norm(models - shares @ models, axis=1))
            shares = beta / beta.sum()
        return shares[0], shares[1:]

    return rounds(before, trained, sent, graph, active, mix)


# --- examples ---------------------------------------------------------------------------------------------------------
def attacked(seed, graph=CYCLE, liars=(1,), times=8, active=None, **more):
    """Clients near each other; liars send something that is far from what they trained."""
    m, numbers = len(graph), Numbers(seed)
    common = numbers.floats(6, size=2)
    trained = common + numbers.floats(m, 6)
    sent = trained.copy()
    for i in liars:
        sent[i] = trained[i] + times * numbers.floats(6)
    return {
        "before": common + numbers.floats(m, 6),
        "trained": trained,
        "sent": sent,
        "graph": graph,
        "active": np.ones(m, bool) if active is None else np.array(active),
        **more,
    }


def alike(case, *rows):
    """The rows are equal to the first of them."""
    for row in rows:
        case["trained"][row] = case["sent"][row] = case["trained"][rows[0]]
    return case


INPUTS = {
    "before": f"models before the round, which those who are down keep, {ROWS}",
    "trained": f"models after local training, {ROWS}: what a client mixes of itself",
    "sent": f"what clients send, {ROWS}: what others mix of it",
    "graph": "from whom a client can receive, [m, m], receiver by sender; undirected",
    **ACTIVE,
}
OUTPUTS = {
    "weights": "[m, m], receiver by sender; that of oneself is of `trained`, others are of `sent`",
    "models": f"after the round, {ROWS}",
}
ITSELF = (
    "Which of a client's own models is in its average?",
    "the one that it trained",
    "it knows it, whatever it sends",
)
CLIPPED = Method(
    name="ClippedGossip",
    configs=["dsgd --aggregation ClippedGossip"],
    paper="He, Karimireddy and Jaggi, Byzantine-Robust Decentralized Learning via ClippedGossip, arXiv 2202.01545",
    equation="eq. 3",
    does="x_i + sum over neighbours of W_ij clip(x_j - x_i, tau_i), clip(z, tau) = min(1, tau / |z|) z, W the Metropolis "
    "weights of those who are up.",
    inputs={
        **INPUTS,
        "outliers": "how many of its farthest neighbours a client takes for outliers",
        "radius": "tau of all clients; 0: the distance of the farthest neighbour but `outliers`, or of the nearest one",
    },
    outputs=OUTPUTS,
    readings=[
        (
            "Which radius?",
            "the distance of the farthest neighbour but a number of them",
            "the theory's depends on who is an adversary; the authors' code does the same with one",
        ),
        ITSELF,
    ],
    cases=[
        ("one outlier", attacked(201, outliers=1, radius=0.0)),
        ("as many outliers as neighbours", attacked(202, outliers=2, radius=0.0)),
        ("nothing is clipped", attacked(203, outliers=0, radius=0.0)),
        ("a given radius on a star", attacked(204, graph=STAR, liars=(0,), outliers=1, radius=0.5)),
        ("two are down", attacked(205, active=[True, True, False, True, False], outliers=1, radius=0.0)),
        ("a neighbour has the client's own model", alike(attacked(206, outliers=1, radius=0.0), 2, 3)),
    ],
    function=clipped_gossip,
)
BALANCE = Method(
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
        ("nothing is accepted", attacked(213, gamma=0.0625, kappa=1.0, alpha=0.5, round=0, rounds_of_run=10)),
        (
            "two are down",
            attacked(
                214,
                active=[True, False, True, True, False],
                **{"gamma": 1.0, "kappa": 0.0, "alpha": 0.5, "round": 3, "rounds_of_run": 4},
            ),
        ),
    ],
    function=balance,
)
KRUM = Method(
    name="Krum and Multi-Krum",
    configs=["dsgd --topology complete --aggregation Krum", "dsgd --topology complete --aggregation MultiKrum"],
    paper="Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient "
    "Descent, NeurIPS 2017, arXiv 1703.02757",
    equation="the definition of Krum",
    does="Of the n models of a client, its own and those received, each has as its score the sum of squared distances to "
    "the n - f - 2 nearest others; those with the lowest scores are averaged, of equal scores the lowest id first.",
    inputs={
        **INPUTS,
        "adversaries": "f, how many of a client's n models may be falsified",
        "kept": "how many models are averaged: 1 is Krum; 0: n - f",
    },
    outputs=OUTPUTS,
    readings=[
        (
            "What if n < 2 f + 3?",
            "the client keeps the model that it trained",
            "the paper's server has n > 2 f + 2; among fewer its choice proves nothing",
        ),
        ITSELF,
    ],
    cases=[
        ("one of five is falsified", attacked(221, others(5), adversaries=1, kept=1)),
        ("two of seven, averaged", attacked(222, others(7), liars=(0, 4), adversaries=2, kept=0)),
        ("the liars agree", alike(attacked(223, others(7), liars=(), adversaries=2, kept=1), 5, 6)),
        ("the best three", attacked(224, others(6), adversaries=1, kept=3)),
        ("equal scores", alike(attacked(225, others(5), adversaries=0, kept=1), 1, 2, 4)),
        ("too few are up", attacked(226, others(5), active=[True, True, False, True, True], adversaries=1, kept=1)),
        ("too few for some", attacked(227, STAR, liars=(3,), adversaries=1, kept=0)),
    ],
    function=krum,
)
GEOMETRIC_MEDIAN = Method(
    name="Geometric median",
    configs=["dsgd --aggregation GeometricMedian"],
    paper="Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE Transactions on Signal "
    "Processing 2022, arXiv 1912.13445",
    equation="the smoothed Weiszfeld algorithm",
    does="v starts at the mean of a client's own model and those received; each iteration v becomes their mean by weights "
    "1 / max(nu, |v - w_k|).",
    inputs={**INPUTS, "smoothing": "nu", "iterations": "how many"},
    outputs=OUTPUTS,
    readings=[
        ("Which weights have models before that?", "equal ones", "an adversary could claim any number of samples"),
        ITSELF,
    ],
    cases=[
        ("one iteration", attacked(231, smoothing=1e-6, iterations=1)),
        ("many iterations", attacked(232, others(6), liars=(2, 3), smoothing=1e-6, iterations=32)),
        ("all are nearer than nu", attacked(233, smoothing=64.0, iterations=4)),
        ("equal models", alike(attacked(234, others(5), smoothing=1e-3, iterations=16), 1, 2, 3)),
        ("two are down", attacked(235, active=[True, False, True, True, False], smoothing=1e-6, iterations=8)),
    ],
    function=geometric_median,
)
