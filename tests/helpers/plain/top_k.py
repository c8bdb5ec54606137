"""Sparsified updates with error feedback."""

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import ROWS
from plain.sent import INPUTS, SENT, made


def top_k(starts, trained, residual, share):
    update = trained - starts + residual
    count = max(1, round(share * update.shape[1]))
    kept = np.zeros_like(update)
    for row, new in zip(update, kept, strict=True):
        for place in sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))[:count]:
            new[place] = row[place]
    return {"sent": starts + kept, "residual": update - kept}


METHOD = Method(
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
