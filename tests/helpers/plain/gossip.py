"""Gossip, Fixed, All, Oracle, Local."""

import numpy as np

from plain.book import Method, others
from plain.neighbours import ACTIVE, ALL, CYCLE, ROWS, TRAINED, rows


def gossip(before, trained, chosen, active):
    m = len(before)
    weights, models = np.zeros((m, m)), before.copy()
    for i in range(m):
        if active[i]:
            voters = [i, *(j for j in range(m) if chosen[i, j] and active[j])]
            weights[i, voters] = 1 / len(voters)
            models[i] = np.mean(trained[voters], 0)
    return {"weights": weights, "models": models}


METHOD = Method(
    name="Gossip, Fixed, All, Oracle, Local",
    configs=[
        "gossip",
        *(
            f"gossip --selection.{more}"
            for more in ("k 0", "redraw false", "k all", "k all --selection.within cluster")
        ),
    ],
    paper="a baseline of all papers; who is chosen differs: random ones (Gossip), once for all (Fixed), all (All), those of the own cluster (Oracle), none (Local)",
    equation="w_i = mean of the chosen models and the own one",
    does="A client that is active averages its own model and those of the chosen clients that are active.",
    inputs={"before": f"models before the round, {ROWS}", **TRAINED, "chosen": "[m, m], client by sender", **ACTIVE},
    outputs={"weights": "[m, m]", "models": f"after the round, {ROWS}"},
    readings=[("What does a client that has dropped out do?", "it keeps its model", "it has no part in the round")],
    cases=[
        ("three chosen, some have dropped out", rows(1, chosen=others(5), active=np.array([1, 0, 1, 1, 0], bool))),
        ("a cycle", rows(2, chosen=CYCLE, active=ALL)),
        ("none is chosen", rows(3, chosen=np.zeros((5, 5), bool), active=ALL)),
        ("all have dropped out", rows(4, chosen=others(5), active=~ALL)),
    ],
    function=gossip,
)
