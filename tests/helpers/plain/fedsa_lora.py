"""FedSA-LoRA."""

from plain.adapters import AFTER, NO_SERVER, PLAIN, SIZES, WEIGHTS, cases, one_round
from plain.book import Method
from plain.neighbours import ORDER


def fedsa_lora(weight, bias, a, b, scale, x, y, graph, active, lr):
    _, own_b, new_a, _ = one_round(weight, bias, a, b, scale, x, y, graph, active, lr)
    return {"a": new_a, "b": own_b}


METHOD = Method(
    name="FedSA-LoRA",
    configs=["fedsa_lora"],
    paper="Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025, arXiv 2410.01463",
    equation="figure 1 (c): A and B are trained, A is averaged",
    does="A client trains both factors together, averages A with its neighbours, and keeps its B.",
    inputs=SIZES,
    outputs=AFTER,
    main=["a", "b"],
    readings=[NO_SERVER, WEIGHTS, ORDER, PLAIN],
    cases=cases(321),
    function=fedsa_lora,
)
