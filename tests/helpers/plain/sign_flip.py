"""Sign flip."""

import numpy as np

from plain.book import Method
from plain.sent import ADVERSARIES, INPUTS, SENT, made, who


def sign_flip(starts, trained, adversaries, scale):
    return {"sent": np.where(adversaries[:, None], starts - scale * (trained - starts), trained)}


METHOD = Method(
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
