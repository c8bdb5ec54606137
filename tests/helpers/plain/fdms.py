"""FL-FDMS (arXiv 2205.13222), and what it is compared with."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import cosine


def halved_cosine(a, b):
    """The score of eq. 14."""
    return (cosine(a, b) + 1) / 2


def minus_distance(a, b):
    """The score that section 5.1 offers instead."""
    return -float(np.sqrt(((a - b) ** 2).sum()))


def fdms(model, updates, active, scores, counts, server_step, score=halved_cosine):
    m = len(updates)
    scores, counts = scores.copy(), counts.copy()
    for i in range(m):
        for j in range(m):
            if i != j and active[i] and active[j]:
                seen = score(updates[i], updates[j])
                scores[i, j] = (counts[i, j] * scores[i, j] + seen) / (counts[i, j] + 1)
                counts[i, j] += 1
    substitute = np.arange(m)
    for k in range(m):
        if not active[k]:
            known = [j for j in range(m) if j != k and active[j] and counts[k, j] > 0]
            substitute[k] = max(known, key=lambda j: (scores[k, j], -j)) if known else -1
    return {
        "scores": scores,
        "counts": counts,
        "substitute": substitute,
        "model": moved(
            model, [updates[j] if j >= 0 else mean(updates, active) for j in substitute], active, server_step
        ),
    }


def mean(updates, active):
    """Average the updates of active clients, to replace an unknown client; zeros if there are none."""
    return np.mean(updates[active], 0) if any(active) else np.zeros_like(updates[0])


def moved(model, messages, active, server_step):
    """The server's model after a step along the mean of messages."""
    return model + server_step * np.mean(messages, 0) if any(active) else model.copy()


def dropout(model, updates, active, server_step):
    return {"model": moved(model, updates[active], active, server_step)}


def stale(model, updates, active, stored, has_stored, server_step):
    messages = [
        updates[k] if active[k] else stored[k] if has_stored[k] else mean(updates, active) for k in range(len(updates))
    ]
    new = np.where(active[:, None], updates, stored) if any(active) else stored.copy()
    return {"model": moved(model, messages, active, server_step), "stored": new, "has_stored": has_stored | active}


def made(seed, active, counts=None, step=1.0, p=4, equal=False):
    numbers, m = Numbers(seed), len(active)
    updates = numbers.floats(m, p)
    if equal:
        updates[:] = updates[0]
    halves = np.zeros((m, m))
    counts = np.zeros((m, m), int) if counts is None else np.array(counts)
    for i in range(m):
        for j in range(i):
            if counts[i, j]:
                halves[i, j] = halves[j, i] = abs(numbers.floats(1)[0])
    return {
        "model": numbers.floats(p),
        "updates": updates,
        "active": np.array(active, bool),
        "scores": halves,
        "counts": counts,
        "server_step": step,
    }


def known(m, *without):
    counts = 2 * (1 - np.eye(m, dtype=int))
    for i, j in without:
        counts[i, j] = counts[j, i] = 0
    return counts


def only(case, *names):
    return {name: case[name] for name in names}


PAPER = "Wang and Xu, Combating Client Dropout in Federated Learning via Friend Model Substitution, arXiv 2205.13222"
INPUTS = {
    "model": "the server's before the round, [P]",
    "updates": "trained model minus the server's, [m, P]; those of clients that have dropped out are never seen",
    "active": "who is active, [m]",
}
STEP = {"server_step": "eta: the server's model moves by so much of the mean of the updates"}
COUNTS = ("Do clients count by their samples?", "no, equally", "section 3 averages over the number of clients")
SKIPPED = ("What happens if no client is active?", "the round is skipped", "algorithm 1 would average nothing")
METHOD = Method(
    name="FL-FDMS",
    configs=["fdms", "fdms --dropout null"],
    paper=PAPER,
    equation="algorithm 1; eq. 14 and 15; section 5.1",
    does="A server keeps the mean similarity of each pair of clients over the rounds in which both were active. In the place "
    "of a client that has dropped out it averages the update of its friend, the most similar one of those that are active.",
    inputs={
        **INPUTS,
        "scores": "R before the round, [m, m]",
        "counts": "N before the round: scores in each mean, [m, m]",
        **STEP,
    },
    outputs={
        "scores": "R after it, [m, m]",
        "counts": "N after it, [m, m]",
        "substitute": "whose update stands for each client's, [m]: its own, its friend's, or -1: there is none",
        "model": "the server's after the round, [P]",
    },
    readings=[
        (
            "Does this round's similarity count for this round's friends?",
            "yes: scores are updated first",
            "the server has all updates before it averages",
        ),
        (
            "What if a client was never active together with one that is active now?",
            "it has no friend, and the mean of those that are active replaces it",
            "nothing is known about it; if no client has a friend, the round is one of plain dropout",
        ),
        ("Which of two equally similar clients is the friend?", "the one with the lower number", "the authors' code"),
        COUNTS,
        SKIPPED,
    ],
    cases=[
        ("all are active", made(1, [1, 1, 1, 1])),
        ("one has dropped out", made(2, [1, 0, 1, 1], known(4))),
        (
            "two have dropped out, one of them unknown",
            made(3, [1, 0, 1, 0, 1], known(5, (3, 0), (3, 1), (3, 2), (3, 4))),
        ),
        ("one is active", made(4, [0, 0, 1], known(3))),
        ("all have dropped out", made(5, [0, 0, 0], known(3))),
        ("equal updates, so that all scores are 1", made(6, [1, 1, 0, 1], [[0] * 4] * 4, equal=True)),
        ("half a step", made(7, [1, 0, 1, 1], known(4), step=0.5)),
    ],
    function=fdms,
)
DROPOUT = Method(
    name="Dropout (of FL-FDMS's comparison)",
    configs=["fdms --substitution null"],
    paper=PAPER,
    equation="section 6, the baseline",
    does="The server averages the updates of those that are active.",
    inputs={**INPUTS, **STEP},
    outputs={"model": "the server's after the round, [P]"},
    readings=[COUNTS, SKIPPED],
    cases=[
        ("two have dropped out", only(made(8, [1, 0, 1, 0, 1]), "model", "updates", "active", "server_step")),
        ("a step of a tenth", only(made(9, [0, 1, 1], step=0.1), "model", "updates", "active", "server_step")),
        ("all have dropped out", only(made(9, [0, 0]), "model", "updates", "active", "server_step")),
    ],
    function=dropout,
)


def remembering(seed, active, has_stored, step=1.0):
    case = only(made(seed, active, step=step), "model", "updates", "active", "server_step")
    stored = Numbers(seed + 100).floats(len(active), 4) * np.array(has_stored)[:, None]
    return {**case, "stored": stored, "has_stored": np.array(has_stored, bool)}


STALE = Method(
    name="Stale (of FL-FDMS's comparison)",
    configs=["fdms --substitution Stale"],
    paper=PAPER,
    equation="section 6, the baseline",
    does="Instead of a client that has dropped out, the server averages the last update that it has sent.",
    inputs={
        **INPUTS,
        **STEP,
        "stored": "the last update of each client before the round, [m, P]; zeros where there is none",
        "has_stored": "who has sent one, [m]",
    },
    outputs={
        "model": "the server's after the round, [P]",
        "stored": "the last updates after it, [m, P]",
        "has_stored": "who has sent one, [m]",
    },
    readings=[
        (
            "Is the last model averaged, or the last update?",
            "the last update, added to the server's present model",
            "the text says the last uploaded update; the authors' code averages models",
        ),
        (
            "What if a client has never sent one?",
            "the mean of those that are active replaces it",
            "nothing is known about it",
        ),
        COUNTS,
        SKIPPED,
    ],
    cases=[
        ("two have dropped out", remembering(10, [1, 0, 1, 0], [1, 1, 0, 1])),
        ("one that has dropped out has never sent one", remembering(11, [1, 0, 0], [1, 1, 0])),
        ("all have dropped out", remembering(12, [0, 0, 0], [1, 1, 1])),
    ],
    function=stale,
)
