"""Dis-PFL."""

import math

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, columns, grad
from plain.neighbours import CYCLE, DATA, GRAPH, ORDER, RATE, ROWS, STAR, trains


def weights_in(layers):
    """Return the columns of each layer's weights in a row, without the biases."""
    return [columns(layers, k)[: layers[k] * layers[k + 1]] for k in range(len(layers) - 1)]


def dispfl(layers, models, masks, x, y, graph, lr, prune, round, rounds):
    m, trained, new = len(models), models.copy(), masks.copy()
    share = prune / 2 * (1 + math.cos(math.pi * round / rounds))
    for i in range(m):
        w = models[i] * masks[i]
        w = w - lr * masks[i] * grad(w, x[i][0], y[i][0], layers)
        trained[i], dense = w, grad(w, x[i][0], y[i][0], layers)
        for at in weights_in(layers):
            held = [c for c in at if masks[i, c]]
            stay = sorted(held, key=lambda c: (-abs(w[c]), c))[: len(held) - math.ceil(share * len(held) - 1e-9)]
            out = [c for c in at if c not in stay]
            grown = sorted(out, key=lambda c: (-abs(dense[c]), c))[: len(held) - len(stay)]
            new[i, at] = 0
            new[i, stay + grown] = 1
    after = np.zeros_like(models)
    for i in range(m):
        near = [i, *(j for j in range(m) if graph[i, j])]
        sums, counts = trained[near].sum(0), masks[near].sum(0)
        after[i] = new[i] * np.where(counts > 0, sums / np.maximum(counts, 1), 0)
    return {"masks": new, "models": after}


def masked(seed, graph=CYCLE, layers=(4, 3, 3), kept=(6, 5), round=2, rounds=8):
    case = trains(
        seed, layers=layers, samples=4, graph=graph, lr=0.5, density=0.5, prune=0.5, round=round, rounds=rounds
    )
    numbers, masks = Numbers(seed + 50), np.ones_like(case["models"])
    for i in range(len(masks)):
        for at, number in zip(weights_in(layers), kept, strict=True):
            masks[i, numbers.random.sample(at, len(at) - number)] = 0
    return {**case, "masks": masks}


def with_density(layers, models, masks, x, y, graph, lr, density, prune, round, rounds):
    return dispfl(layers, models, masks, x, y, graph, lr, prune, round, rounds)


METHOD = Method(
    name="Dis-PFL",
    configs=["dispfl"],
    paper="Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training, ICML 2022, arXiv 2206.00187",
    equation="algorithms 1 and 2",
    does="A step under the mask; of each layer's weights the share prune / 2 (1 + cos(pi t / T)) leaves the mask, the "
    "smallest ones, and as many come in, where the dense gradient is largest; models are averaged entry by entry over "
    "those whose masks hold the entry, and the client's own new mask is applied.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "masks": f"before the round, zeros and ones, {ROWS}; biases have none, so ones",
        **DATA,
        **GRAPH,
        **RATE,
        "density": "share of the weights that masks keep, layer by layer by the Erdos-Renyi kernel; the masks have it",
        "prune": "alpha",
        "round": "t, from 0",
        "rounds": "T",
    },
    outputs={"masks": f"after the round, {ROWS}", "models": f"after the round, {ROWS}"},
    main=["masks", "models"],
    readings=[
        (
            "Which masks does the average use, those before or after the search?",
            "those that models were trained with; the client's own new mask is applied to the result",
            "an entry that has just come in has no trained weight at its owner",
        ),
        ("May what has just left come back?", "yes", "a full layer stays full"),
        ("How many weights leave?", "rounded up", "the paper does not say"),
        (
            "At which model is the dense gradient?",
            "at the trained one, on one further batch",
            "algorithm 2 follows the training",
        ),
        ORDER,
    ],
    cases=[
        ("a round on a cycle", masked(111)),
        ("an early round", masked(112, round=1, rounds=100)),
        ("the last round exchanges little", masked(113, graph=STAR, round=7)),
        ("no neighbours", masked(114, graph=np.zeros((5, 5), bool))),
    ],
    function=with_density,
)
