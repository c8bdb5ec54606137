"""kNN-Per."""

import math

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, forward, size, softmax


def knn_per(layers, model, x, y, queries, k, scale, weight):
    inputs, scores = forward(model, queries, layers)
    stored, classes = forward(model, x, layers)[0][-1], layers[-1]
    found = []
    for features, p in zip(inputs[-1], softmax(scores), strict=True):
        squared = ((stored - features) ** 2).sum(1)
        nearest = sorted(range(len(x)), key=lambda n: (squared[n], n))[:k]
        votes = np.zeros(classes)
        for n in nearest:
            votes[y[n]] += math.exp(-(squared[n] - squared[nearest[0]]) / (len(features) * scale))
        found.append(weight * votes / votes.sum() + (1 - weight) * p if len(nearest) else p)
    return {"probabilities": np.array(found)}


def remembered(seed, samples=6, k=3, layers=(3, 2, 3), **more):
    numbers = Numbers(seed)
    case = {
        "layers": list(layers),
        "model": numbers.floats(size(layers), size=2),
        "x": numbers.floats(samples, layers[0], size=2),
    }
    y = numbers.classes(samples, number=layers[-1])
    return {
        **case,
        "y": y,
        "queries": numbers.floats(4, layers[0], size=2),
        "k": k,
        "scale": 1.0,
        "weight": 0.5,
        **more,
    }


METHOD = Method(
    name="kNN-Per",
    configs=["knn_per"],
    paper="Marfoq, Neglia, Kameni and Vidal, Personalized Federated Learning through Local Memorization, ICML 2022, arXiv 2111.09360",
    equation="section 3, eq. 6 to 8",
    does="The k nearest stored features (inputs of the last layer) vote for their classes by exp(-d^2 / (D scale)), D the "
    "number of features; p = weight votes + (1 - weight) softmax.",
    inputs={
        **MODEL,
        "model": "of the client, [P]",
        "x": "its training inputs, [samples, inputs]",
        "y": "their classes, [samples]",
        "queries": "inputs to be classified, [queries, inputs]",
        "k": "how many vote",
        "scale": "of the distances",
        "weight": "of the votes",
    },
    outputs={"probabilities": "[queries, classes]"},
    readings=[
        ("exp(-d) in the paper", "exp(-d^2 / (D scale))", "the authors' code; it does not depend on D"),
        ("k above the number of samples", "all vote", "the paper does not say"),
        ("No samples", "the network alone decides", "the paper does not say"),
    ],
    cases=[
        ("three of six vote", remembered(81)),
        ("k above the samples", remembered(82, k=10)),
        ("the nearest alone, votes alone", remembered(83, k=1, weight=1.0)),
        ("far features", remembered(84, scale=2.0**-10, weight=0.75)),
    ],
    function=knn_per,
)
