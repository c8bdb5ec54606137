"""FFA-LoRA."""

import numpy as np

from plain.adapters import AFTER, NO_SERVER, PLAIN, SIZES, WEIGHTS, cases, one_round
from plain.book import Method
from plain.neighbours import ORDER


def ffa_lora(weight, bias, a, b, scale, x, y, graph, active, lr):
    _, _, _, new_b = one_round(weight, bias, np.stack([a] * len(b)), b, scale, x, y, graph, active, lr, trains_a=False)
    return {"b": new_b}


METHOD = Method(
    name="FFA-LoRA",
    configs=["ffa_lora"],
    paper="Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, arXiv 2403.12313",
    equation="figure 1 (b) of arXiv 2410.01463: A is fixed as it was drawn, B is trained and averaged",
    does="All clients have one A, which stays; each trains its B, and averages it with its neighbours.",
    inputs={**SIZES, "a": "A of all clients, [rank, inputs]"},
    outputs={"b": AFTER["b"]},
    main=["b"],
    readings=[NO_SERVER, WEIGHTS, ORDER, PLAIN],
    cases=cases(311, one_a=True),
    function=ffa_lora,
)
