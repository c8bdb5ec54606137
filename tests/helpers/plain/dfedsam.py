"""DFedSAM and DFedSAM-MGS."""

import numpy as np

from plain.book import Method
from plain.model import MODEL, grad
from plain.neighbours import ACTIVE, ALL, CYCLE, RATE, ROWS, STAR, UNDIRECTED, metropolis, trains


def dfedsam(layers, models, x, y, graph, active, lr, rho, steps):
    trained, weights = models.copy(), metropolis(graph, active)
    for i in range(len(models)):
        for bx, by in zip(x[i], y[i], strict=True) if active[i] else []:
            g = grad(trained[i], bx, by, layers)
            length = np.linalg.norm(g)
            worst = trained[i] + rho * g / length if length > 0 else trained[i]
            trained[i] = trained[i] - lr * grad(worst, bx, by, layers)
    for _ in range(steps):
        trained = weights @ trained
    return {"models": trained}


def flat_for_one(seed):
    """The first client's model is zero and its batch has each input with both classes: its gradient is zero."""
    case = trains(seed, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=1)
    case["models"][0] = 0
    case["x"][0][0, 1], case["y"][0] = case["x"][0][0, 0], np.array([[0, 1]])
    return case


METHOD = Method(
    name="DFedSAM and DFedSAM-MGS",
    configs=["dfedsam", "dfedsam --aggregation.steps 4"],
    paper="Shi et al., Improving the Model Consistency of Decentralized Federated Learning, ICML 2023, arXiv 2302.04083",
    equation="algorithm 1",
    does="A step follows the gradient at w + rho g / |g|, g the gradient of the same batch at w; then models are mixed by W, "
    "`steps` times.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        **UNDIRECTED,
        **ACTIVE,
        **RATE,
        "rho": "length of the step to the worst point nearby",
        "steps": "how often models are mixed: 1 is DFedSAM, more are DFedSAM-MGS",
    },
    outputs={"models": f"after the round, {ROWS}"},
    readings=[
        ("Is there momentum?", "none here", "algorithm 1 has plain steps"),
        ("What if the gradient is zero?", "the worst point is w itself", "there is no direction"),
    ],
    cases=[
        ("one step", trains(241, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=1)),
        (
            "three steps, two layers, a star",
            trains(242, layers=(3, 2, 2), count=3, graph=STAR, active=ALL, lr=0.25, rho=0.125, steps=1),
        ),
        ("four mixing steps", trains(243, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=4)),
        ("rho = 0 is D-SGD", trains(244, graph=CYCLE, active=ALL, lr=0.25, rho=0.0, steps=1)),
        (
            "two have dropped out",
            trains(245, graph=CYCLE, active=np.array([True, True, False, True, False]), lr=0.25, rho=0.5, steps=1),
        ),
        ("a gradient of zero", flat_for_one(246)),
    ],
    function=dfedsam,
)
