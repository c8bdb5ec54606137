"""Dec-LoRA."""

import numpy as np

from plain.adapters import AFTER, PLAIN, SIZES, WEIGHTS, cases, one_round
from plain.book import Method
from plain.neighbours import ORDER, metropolis


def lora_gossip(weight, bias, a, b, scale, x, y, graph, active, lr):
    trained_a, trained_b, new_a, new_b = one_round(weight, bias, a, b, scale, x, y, graph, active, lr)
    weights = metropolis(graph, active)
    errors = [
        np.linalg.norm(sum(w * q @ p for w, p, q in zip(row, trained_a, trained_b, strict=True)) - bi @ ai)
        for row, ai, bi, up in zip(weights, new_a, new_b, active, strict=True)
        if up
    ]
    return {"a": new_a, "b": new_b, "error": np.mean(errors)}


METHOD = Method(
    name="Dec-LoRA",
    configs=["lora_gossip"],
    paper="Ghiasvand et al., Decentralized Low-Rank Fine-Tuning of Large Language Models, arXiv 2501.15361",
    equation="its abstract: clients train both factors and average them with neighbours",
    does="A client trains both factors of its adapters, then averages each of them with its neighbours; the error of the "
    "averages is that of their product.",
    inputs=SIZES,
    outputs={
        **AFTER,
        "error": "mean over clients that mix of ||sum_j w_ij B_j A_j - (sum_j w_ij B_j) (sum_j w_ij A_j)||",
    },
    main=["a", "b"],
    readings=[WEIGHTS, ORDER, PLAIN],
    cases=cases(301),
    function=lora_gossip,
)
