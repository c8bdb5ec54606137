"""A round with messages of adversaries, and its examples."""

import numpy as np

from plain.book import Numbers
from plain.neighbours import ACTIVE, CYCLE, ROWS


def rounds(before, trained, sent, graph, active, mix):
    """The weights and models of all clients; `mix(i, neighbours, what they sent)` gives own weight, theirs."""
    m = len(before)
    weights, models = np.zeros((m, m)), before.copy()
    for i in range(m):
        if active[i]:
            near = [j for j in range(m) if graph[i, j] and active[j]]
            weights[i, i], weights[i, near] = mix(i, near, sent[near])
            models[i] = weights[i, i] * trained[i] + weights[i, near] @ sent[near]
    return {"weights": weights, "models": models}


def attacked(seed, graph=CYCLE, liars=(1,), times=8, active=None, **more):
    """Clients near each other; liars send something that is far from what they trained."""
    m, numbers = len(graph), Numbers(seed)
    common = numbers.floats(6, size=2)
    trained = common + numbers.floats(m, 6)
    sent = trained.copy()
    for i in liars:
        sent[i] = trained[i] + times * numbers.floats(6)
    return {
        "before": common + numbers.floats(m, 6),
        "trained": trained,
        "sent": sent,
        "graph": graph,
        "active": np.ones(m, bool) if active is None else np.array(active),
        **more,
    }


def alike(case, *rows):
    """The rows are equal to the first of them."""
    for row in rows:
        case["trained"][row] = case["sent"][row] = case["trained"][rows[0]]
    return case


INPUTS = {
    "before": f"models before the round, which those who have dropped out keep, {ROWS}",
    "trained": f"models after local training, {ROWS}: what a client mixes of itself",
    "sent": f"what clients send, {ROWS}: what others mix of it",
    "graph": "from whom a client can receive, [m, m], receiver by sender; undirected",
    **ACTIVE,
}
OUTPUTS = {
    "weights": "[m, m], receiver by sender; that of oneself is of `trained`, others are of `sent`",
    "models": f"after the round, {ROWS}",
}
ITSELF = (
    "Which of a client's own models is in its average?",
    "the one that it trained",
    "it knows it, whatever it sends",
)
