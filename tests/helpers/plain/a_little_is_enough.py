"""A little is enough."""

import numpy as np

from plain.book import Method
from plain.sent import ADVERSARIES, INPUTS, SENT, made, who


def a_little_is_enough(starts, trained, adversaries, z):
    rows = trained[adversaries]
    mean = rows.mean(0)
    deviation = np.sqrt(((rows - mean) ** 2).mean(0))
    return {"sent": np.where(adversaries[:, None], mean - z * deviation, trained)}


METHOD = Method(
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
