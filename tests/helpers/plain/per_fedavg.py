"""Per-FedAvg."""

from plain.book import Method
from plain.model import grad
from plain.server import AFTER, DATA, SERVER, averaged, batches, made


def hessian_times(w, v, x, y, layers):
    """By a complex step, exact to the last digits."""
    return grad(w + 1e-30j * v, x, y, layers).imag / 1e-30


def per_fedavg(layers, model, x, y, alpha, beta, order):
    rows = []
    for i in range(len(x)):
        w, queue = model.copy(), batches(x[i], y[i])
        while queue:
            first, second = queue.pop(0), queue.pop(0)
            g = grad(w - alpha * grad(w, *first, layers), *second, layers)
            if order == "hessian":
                g = g - alpha * hessian_times(w, g, *queue.pop(0), layers)
            w = w - beta * g
        rows.append(w)
    return {"model": averaged(rows, x)}


def of_maml(seed, m=3, count=4, order="first", alpha=0.125, beta=0.25, layers=(3, 2)):
    case = made(seed, m, count, layers)
    del case["lr"]
    return {**case, "alpha": alpha, "beta": beta, "order": order}


METHOD = Method(
    name="Per-FedAvg",
    configs=["per_fedavg"],
    paper="Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, arXiv 2002.07948",
    equation="algorithm 1, eq. 5 and 7; section 5.1 for the first-order version",
    does="A step takes batches D, D' and D'': w = w - beta (I - alpha Hessian(w; D'')) grad(w - alpha grad(w; D); D'). "
    "The first-order version leaves the Hessian, and D'', out.",
    inputs={
        **SERVER,
        "x": "training data of each client, [batches, samples, inputs], taken in this order: D, D' (and D''), D, ...",
        "y": DATA["y"],
        "alpha": "length of the inner step",
        "beta": "length of the outer step",
        "order": "first, or hessian",
    },
    outputs=AFTER,
    readings=[
        (
            "How many batches has a step of the first-order version?",
            "two",
            "nothing is left for which it would need a third",
        ),
        (
            "Does the round end with the step of length alpha that clients take before a test?",
            "no, it belongs to the evaluation",
            "a step before averaging would be averaged away",
        ),
    ],
    cases=[
        ("one step of one client", of_maml(41, m=1, count=2)),
        ("a round", of_maml(42, count=[2, 6, 4])),
        ("with the Hessian", of_maml(43, count=[3, 6], m=2, order="hessian")),
        ("two layers, with the Hessian", of_maml(44, m=2, count=6, order="hessian", layers=(2, 3, 2))),
        ("alpha = 0 is descent on every second batch", of_maml(45, alpha=0.0)),
    ],
    function=per_fedavg,
)
