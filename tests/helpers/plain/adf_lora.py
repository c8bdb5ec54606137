"""ADF-LoRA."""

import numpy as np

from plain.adapters import AFTER, PLAIN, SIZES, WEIGHTS, drawn, one_round
from plain.book import Method
from plain.neighbours import CYCLE, ORDER, STAR


def adf_lora(weight, bias, a, b, scale, x, y, graph, active, lr, rounds):
    for turn in range(rounds):
        trains = {"trains_a": turn % 2 == 1, "trains_b": turn % 2 == 0}
        _, _, a, b = one_round(weight, bias, a, b, scale, x, y, graph, active, lr, **trains)
    return {"a": a, "b": b}


METHOD = Method(
    name="ADF-LoRA",
    configs=["adf_lora"],
    paper="Wang et al., ADF-LoRA: Alternating Low-Rank Aggregation for Decentralized Federated Fine-Tuning, arXiv 2511.18291",
    equation="its abstract: one factor is trained in a round, by all, and both are averaged",
    does="In the first, third, … round clients train B, in the others A; both are averaged with neighbours in each round.",
    inputs={**SIZES, "rounds": "number of rounds"},
    outputs=AFTER,
    main=["a", "b"],
    readings=[
        ("Which factor comes first?", "B", "it begins at 0, where the gradient of A is 0"),
        WEIGHTS,
        ORDER,
        PLAIN,
    ],
    cases=[
        ("B alone", drawn(331, graph=CYCLE, rounds=1)),
        ("B, then A", drawn(332, graph=STAR, rank=2, inputs=4, classes=3, rounds=2)),
        ("three rounds", drawn(333, graph=CYCLE, active=np.array([1, 0, 1, 1, 0], bool), rounds=3)),
    ],
    function=adf_lora,
)
