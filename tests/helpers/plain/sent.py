"""Examples of messages."""

import numpy as np

from plain.book import Numbers
from plain.neighbours import ROWS


def made(seed, m=4, p=8, **more):
    numbers = Numbers(seed)
    return {"starts": numbers.floats(m, p), "trained": numbers.floats(m, p, size=2), **more}


def who(m, *ids):
    return np.isin(np.arange(m), ids)


INPUTS = {"starts": f"models that training started from, {ROWS}", "trained": f"models after local training, {ROWS}"}
ADVERSARIES = {"adversaries": "who is one, [m]"}
SENT = {"sent": f"what others receive, {ROWS}: a model, that of honest clients is what they trained"}
