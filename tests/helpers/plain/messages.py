"""What leaves a client in the place of its model: sparse updates, and the attacks that draw nothing."""

import numpy as np

from plain.book import Method, Numbers
from plain.mixed import ROWS


def top_k(starts, trained, residual, share):
    update = trained - starts + residual
    count = max(1, round(share * update.shape[1]))
    kept = np.zeros_like(update)
    for row, new in zip(update, kept, strict=True):
        for place in sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))[:count]:
            new[place] = row[place]
    return {"sent": starts + kept, "residual": update - kept}


def sign_flip(starts, trained, adversaries, scale):
    return {"sent": np.where(adversaries[:, None], starts - scale * (trained - starts), trained)}


def a_little_is_enough(starts, trained, adversaries, z):
    rows = trained[adversaries]
    mean = rows.mean(0)
    deviation = np.sqrt(((rows - mean) ** 2).mean(0))
    return {"sent": np.where(adversaries[:, None], mean - z * deviation, trained)}


def made(seed, m=4, p=8, **more):
    numbers = Numbers(seed)
    return {"starts": numbers.floats(m, p), "trained": numbers.floats(m, p, size=2), **more}


def who(m, *ids):
    return np.isin(np.arange(m), ids)


INPUTS = {"starts": f"models that training started from, {ROWS}", "trained": f"models after local training, {ROWS}"}
ADVERSARIES = {"adversaries": "who is one, [m]"}
SENT = {"sent": f"what others receive, {ROWS}: a model, that of honest clients is what they trained"}
TOP_K = Method(
    name="Sparsified updates with error feedback",
    configs=[],
    paper="Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018, arXiv 1809.07599",
    equation="algorithm 1, on the updates of rounds",
    does="The largest entries of the update and what was kept so far, by absolute value, are sent; the rest is kept.",
    inputs={**INPUTS, "residual": f"what is kept from before, {ROWS}", "share": "of the entries that are sent"},
    outputs={**SENT, "residual": f"what is kept, {ROWS}"},
    readings=[
        ("How many entries are a share?", "the nearest whole number, at least one", "k is given as a number"),
        ("Which of equal entries?", "the first ones", "any choice of k largest is one"),
    ],
    cases=[
        ("a first round", made(301, residual=np.zeros((4, 8)), share=0.25)),
        ("with a residual", made(302, residual=Numbers(352).floats(4, 8), share=0.5)),
        ("less than one entry is one", made(303, residual=np.zeros((4, 8)), share=0.01)),
        ("everything is sent", made(304, residual=Numbers(354).floats(4, 8), share=1.0)),
        (
            "equal entries",
            {
                **made(305, residual=np.zeros((4, 8)), share=0.375),
                "trained": np.ones((4, 8)),
                "starts": np.zeros((4, 8)),
            },
        ),
    ],
    function=top_k,
)
SIGN_FLIP = Method(
    name="Sign flip",
    configs=[],
    paper="Li, Xu, Chen, Giannakis and Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019, arXiv 1811.03761",
    equation="the sign-flipping attack",
    does="Adversaries send start - scale (trained - start).",
    inputs={**INPUTS, **ADVERSARIES, "scale": "how many times as long the flipped update is"},
    outputs=SENT,
    readings=[("What is flipped, the model or the update?", "the update", "as gradients are where gradients are sent")],
    cases=[
        ("one of four", made(311, adversaries=who(4, 2), scale=1.0)),
        ("two, longer", made(312, adversaries=who(4, 0, 3), scale=5.0)),
    ],
    function=sign_flip,
)
A_LITTLE = Method(
    name="A little is enough",
    configs=[],
    paper="Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019, arXiv 1902.06635",
    equation="the attack that prevents convergence",
    does="Adversaries all send mean - z std of their models, in each parameter.",
    inputs={**INPUTS, **ADVERSARIES, "z": "standard deviations"},
    outputs=SENT,
    readings=[
        ("Of what are mean and deviation?", "of the adversaries' models", "clients without a server start apart"),
        ("Which deviation?", "that of a population", "the authors' code"),
    ],
    cases=[
        ("two of four", made(321, adversaries=who(4, 0, 2), z=1.5)),
        ("three of five", made(322, m=5, adversaries=who(5, 1, 2, 4), z=0.25)),
        ("equal models have no deviation", {**made(323, adversaries=who(4, 1, 3), z=2.0), "trained": np.ones((4, 8))}),
    ],
    function=a_little_is_enough,
)
