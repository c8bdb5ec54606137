"""ClippedGossip."""

import math

from plain.book import Method
from plain.neighbours import STAR, metropolis
from plain.robust_rounds import INPUTS, ITSELF, OUTPUTS, alike, attacked, rounds


def clipped_gossip(before, trained, sent, graph, active, outliers, radius):
    shares = metropolis(graph, active)

    def mix(i, near, received):
        far = [math.dist(trained[i], row) for row in received]
        tau = radius if radius else (sorted(far)[max(0, len(far) - 1 - outliers)] if far else 0.0)
        kept = [shares[i, j] * (min(1.0, tau / d) if d > 0 else 1.0) for j, d in zip(near, far, strict=True)]
        return 1 - sum(kept), kept

    return rounds(before, trained, sent, graph, active, mix)


METHOD = Method(
    name="ClippedGossip",
    configs=["dsgd --aggregation ClippedGossip"],
    paper="He, Karimireddy and Jaggi, Byzantine-Robust Decentralized Learning via ClippedGossip, arXiv 2202.01545",
    equation="eq. 3",
    does="x_i + sum over neighbours of W_ij clip(x_j - x_i, tau_i), clip(z, tau) = min(1, tau / |z|) z, W the Metropolis "
    "weights of those who are active.",
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
        ("two have dropped out", attacked(205, active=[True, True, False, True, False], outliers=1, radius=0.0)),
        ("a neighbour has the client's own model", alike(attacked(206, outliers=1, radius=0.0), 2, 3)),
    ],
    function=clipped_gossip,
)
