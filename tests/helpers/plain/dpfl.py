"""DPFL (AISTATS 2025)."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, loss, size


def dpfl(layers, trained, x, y, samples, order, coins, budget):
    m = len(trained)
    chosen, gains, drops = np.zeros((m, m), bool), np.full((m, m), np.nan), np.full((m, m), np.nan)
    models = trained.copy()
    for i in range(m):
        candidates = [int(j) for j in order[i] if j >= 0]

        def value(members, i=i):
            members = sorted(members)
            shares = samples[members] / samples[members].sum()
            return loss(shares @ trained[members], x[i], y[i], layers)

        def gain(before, after):
            return before - after if before - after > 1e-6 * max(1.0, abs(before)) else 0.0

        have, may = {i}, {i, *candidates}
        for j, coin in zip(candidates, coins[i], strict=False):
            if len(have) - 1 >= budget:
                break
            a, b = gain(value(have), value(have | {j})), gain(value(may), value(may - {j}))
            gains[i, j], drops[i, j] = a, b
            if coin < (a / (a + b) if a + b > 0 else 1.0):
                have |= {j}
            else:
                may -= {j}
        chosen[i, sorted(have - {i})] = True
        members = sorted(have)
        models[i] = samples[members] / samples[members].sum() @ trained[members]
    return {"adding": gains, "removing": drops, "chosen": chosen, "models": models}


def made(seed, m=5, budget=9, layers=(3, 2), near=False, alone=()):
    numbers = Numbers(seed)
    trained = numbers.floats(m, size(layers), size=2)
    order, coins = np.full((m, m - 1), -1), np.zeros((m, m - 1))
    for i in range(m):
        if i not in alone:
            order[i] = numbers.random.sample([j for j in range(m) if j != i], m - 1)
        coins[i] = [numbers.random.randint(1, 15) / 16 for _ in range(m - 1)]
    return {
        "layers": list(layers),
        "trained": np.tile(trained[:1], (m, 1)) if near else trained,
        "x": numbers.floats(m, 5, layers[0], size=2),
        "y": numbers.classes(m, 5, number=layers[-1]),
        "samples": 1 + numbers.classes(m, number=4),
        "order": order,
        "coins": coins,
        "budget": budget,
    }


METHOD = Method(
    name="DPFL",
    configs=["dpfl"],
    paper="Kharrat, Canini and Horvath, DPFL: Decentralized Personalized Federated Learning, AISTATS 2025",
    equation="algorithms 2 and 3 (they decide alike, theorem 1); eq. 3 and 6; section 3.2",
    does="Candidates come one after the other. One joins X with probability a / (a + b), else it leaves Y: a is what its "
    "model lowers the client's validation loss of the average of X by, b what leaving it out of Y does. X starts as the "
    "client alone, Y as all. The client continues with the average of X.",
    inputs={
        **MODEL,
        "trained": "models after local training, [m, P], a row for each client",
        "x": "validation inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "samples": "the clients' weights in averages (p is their share), [m]",
        "order": "each client's candidates, one after the other, [m, m - 1]; -1: no more",
        "coins": "a candidate is added if its coin, in the same place, is below a / (a + b), [m, m - 1]",
        "budget": "B_c: how many others a client may choose",
    },
    outputs={
        "adding": "a of each candidate, [m, m], client by candidate; null where it was not evaluated",
        "removing": "b of each candidate, [m, m]",
        "chosen": "[m, m]",
        "models": "averages of the chosen ones and the client itself, [m, P]",
    },
    readings=[
        (
            "Does the budget count the client itself (eq. 3, and |X| = B_c in algorithms 2 and 3)?",
            "no; it is tested before each candidate",
            "eq. 3 defines it so; as printed, X can exceed it",
        ),
        (
            "The average of Y without j is divided by the weights of Y without k (algorithm 2, line 6)",
            "divided by the weights of Y without j",
            "a misprint, which algorithm 3 does not have",
        ),
        ("What is 0 / (0 + 0)?", "1: the candidate is added", "a client that changes nothing does no harm"),
        (
            "Does every gain above 0 count?",
            "one of at most 1e-6 of the loss (of 1 if that is smaller) does not",
            "losses of equal models differ by rounding, which would decide",
        ),
        ("Is the loss a mean over samples or over batches?", "over samples", "clients' last batches are shorter"),
    ],
    cases=[
        ("a choice without a bound", made(1)),
        ("a budget of one", made(2, budget=1)),
        ("a budget of two of seven", made(3, m=8, budget=2)),
        ("a budget of none", made(4, budget=0)),
        ("equal models: nothing is gained, all are added", made(5, m=4, near=True)),
        ("one client without candidates", made(6, alone=(2,))),
        ("two layers", made(7, layers=(2, 3, 3))),
    ],
    function=dpfl,
)
