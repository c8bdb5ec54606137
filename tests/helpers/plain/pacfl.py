"""PACFL."""

import math

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import OWN, ROWS, TRAINED


def signature(x, y, vectors):
    found = []
    for label in sorted(set(y.tolist())):
        left = np.linalg.svd(x[y == label].T, full_matrices=False)[0][:, :vectors]
        found.append(left)
    return np.linalg.qr(np.concatenate(found, 1))[0]


def pacfl(trained, x, y, vectors, threshold):
    m = len(trained)
    spans = [signature(x[i], y[i], vectors) for i in range(m)]
    degrees = np.zeros((m, m))
    for i in range(m):
        for j in range(i):
            cosine = np.linalg.svd(spans[i].T @ spans[j], compute_uv=False)[0]
            degrees[i, j] = degrees[j, i] = math.degrees(math.acos(min(1.0, cosine)))
    groups = [[i] for i in range(m)]
    while len(groups) > 1:
        pairs = [
            (np.mean(degrees[np.ix_(a, b)]), p, q) for p, a in enumerate(groups) for q, b in enumerate(groups) if p < q
        ]
        apart, p, q = min(pairs)
        if apart > threshold:
            break
        groups[p] += groups.pop(q)
    clusters, models = np.zeros(m, int), trained.copy()
    for number, group in enumerate(sorted(map(sorted, groups))):
        clusters[group] = number
        counts = np.array([len(y[i]) for i in group])
        models[group] = counts / counts.sum() @ trained[group]
    return {"degrees": degrees, "clusters": clusters, "models": models}


def subspaces(seed, threshold, kinds=(0, 0, 1, 1, 0), vectors=1, noise=0.5, width=6):
    numbers, m = Numbers(seed), len(kinds)
    bases = numbers.floats(2, 2, width, size=2)
    x = np.array([[4 * bases[kind, n % 2] for n in range(6)] for kind in kinds]) + numbers.floats(
        m, 6, width, size=noise
    )
    y = np.tile([0, 1, 0, 1, 0, 1], (m, 1))
    return {"trained": numbers.floats(m, 2 * width + 2), "x": x, "y": y, "vectors": vectors, "threshold": threshold}


METHOD = Method(
    name="PACFL",
    configs=["pacfl"],
    paper="Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles Between Client Data Subspaces, AAAI 2023, arXiv 2209.10526",
    equation="algorithm 1, eq. 2",
    does="A client's signature are the first left singular vectors of the inputs of each of its classes; distances are "
    "the smallest principal angles; clusters are joined (average linkage) up to a threshold, and average their models.",
    inputs={
        **TRAINED,
        **OWN,
        "vectors": "singular vectors of each class",
        "threshold": "largest distance at which clusters are joined, in degrees",
    },
    outputs={
        "degrees": "distances, [m, m]",
        "clusters": "of each client, [m], numbered by their first clients",
        "models": f"after averaging within clusters by numbers of samples, {ROWS}",
    },
    readings=[
        (
            "Vectors of several classes are not orthogonal to each other",
            "the angle is between what they span together",
            "a principal angle needs a basis",
        )
    ],
    cases=[
        ("two kinds of clients", subspaces(71, 15.0)),
        ("a threshold of 0: clusters of one", subspaces(72, 0.0)),
        ("a threshold that joins all", subspaces(73, 90.0)),
        ("two vectors of each class", subspaces(74, 50.0, vectors=2, noise=1.0, width=14)),
    ],
    function=pacfl,
)
