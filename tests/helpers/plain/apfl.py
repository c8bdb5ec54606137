"""APFL."""

import numpy as np

from plain.book import Method
from plain.model import grad
from plain.server import AFTER, DATA, NO_MOMENTUM, RATE, ROUNDS, SERVER, averaged, batches, made, own_models


def apfl(layers, model, local, alpha, adapt, x, y, lr, rounds):
    local, alpha = local.copy(), alpha.copy()
    for _ in range(rounds):
        rows = []
        for i in range(len(x)):
            w, v = model.copy(), local[i]
            for number, (bx, by) in enumerate(batches(x[i], y[i])):
                mixture = alpha[i] * v + (1 - alpha[i]) * w
                of_mixture, of_w = grad(mixture, bx, by, layers), grad(w, bx, by, layers)
                slope = float((v - w) @ of_mixture)
                w, v = w - lr * of_w, v - lr * alpha[i] * of_mixture
                if adapt and number == 0:
                    alpha[i] = min(1.0, max(0.0, alpha[i] - lr * slope))
            rows.append(w)
            local[i] = v
        model = averaged(rows, x)
    return {
        "model": model,
        "local": local,
        "alpha": alpha,
        "mixture": alpha[:, None] * local + (1 - alpha[:, None]) * model,
    }


def of_apfl(seed, alpha, adapt=False, rounds=1, layers=(3, 2), **more):
    m = len(alpha)
    case = {**made(seed, m, layers=layers, **more), "local": own_models(seed, m, layers)}
    return {**case, "alpha": np.array(alpha), "adapt": adapt, "rounds": rounds}


METHOD = Method(
    name="APFL",
    configs=["apfl"],
    paper="Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, arXiv 2003.13461",
    equation="algorithm 1; eq. 11 for alpha",
    does="w descends its own loss and is averaged; the local model v descends the loss at the mixture alpha v + (1 - "
    "alpha) w, so that its gradient has the factor alpha. Clients are evaluated by the mixture.",
    inputs={
        **SERVER,
        "local": "v of each client before the round, [m, P]",
        "alpha": "of each client, [m]",
        "adapt": "whether alpha moves: on the first batch of a round, by the learning rate",
        **DATA,
        **RATE,
        **ROUNDS,
    },
    outputs={
        **AFTER,
        "local": "v after the round, [m, P]",
        "alpha": "after the round, [m]",
        "mixture": "alpha v + (1 - alpha) w after the round, w the new average, [m, P]",
    },
    main=["model", "mixture"],
    readings=[
        (
            "Which gradients does a step use, if w has moved already?",
            "all are taken where the step began, with the former alpha",
            "the algorithm's right-hand sides are of one time",
        ),
        (
            "When does alpha move (eq. 11)?",
            "on the first batch of a round, by the learning rate, and it is kept within 0 and 1",
            "there w is the model that was exchanged; the authors' code moves it once a round, too",
        ),
        (
            "Is the mixture of a client's own w or of the average?",
            "of the average",
            "a client has it when it is evaluated",
        ),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_apfl(31, [0.25], count=1)),
        ("a round", of_apfl(32, [0.25, 0.5, 0.75], count=[1, 3, 2])),
        ("two rounds", of_apfl(33, [0.25, 0.5, 0.75], count=1, rounds=2)),
        ("alpha = 0 and 1", of_apfl(34, [0.0, 1.0])),
        ("alpha moves", of_apfl(35, [0.25, 0.5, 0.75], adapt=True)),
        ("alpha moves to its bounds", of_apfl(36, [0.0, 1.0, 0.03125, 0.96875], adapt=True, count=1, lr=1.0)),
        ("two layers", of_apfl(37, [0.25, 0.5], layers=(3, 2, 2))),
    ],
    function=apfl,
)
