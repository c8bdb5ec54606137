"""Geometric median."""

import numpy as np

from plain.book import Method, others
from plain.robust_rounds import INPUTS, ITSELF, OUTPUTS, alike, attacked, rounds


def geometric_median(before, trained, sent, graph, active, smoothing, iterations):
    def mix(i, near, received):
        models = np.vstack([trained[i], received])
        shares = np.full(len(models), 1 / len(models))
        for _ in range(iterations):
            beta = 1 / np.maximum(smoothing, np.linalg.norm(models - shares @ models, axis=1))
            shares = beta / beta.sum()
        return shares[0], shares[1:]

    return rounds(before, trained, sent, graph, active, mix)


METHOD = Method(
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
        ("two have dropped out", attacked(235, active=[True, False, True, True, False], smoothing=1e-6, iterations=8)),
    ],
    function=geometric_median,
)
