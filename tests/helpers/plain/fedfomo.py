"""FedFomo (arXiv 2012.08565)."""

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, loss, size


def fedfomo(layers, before, trained, x, y, graph, affinity, k, epsilon, coins, order):
    m = len(before)
    asked, worth = np.zeros((m, m), bool), np.full((m, m), np.nan)
    weights, models, new = np.zeros((m, m)), trained.copy(), affinity.copy()
    for i in range(m):
        senders = [j for j in range(m) if graph[i, j]]
        best = sorted(senders, key=lambda j: -affinity[i, j])
        random_ones = sorted(senders, key=lambda j: order[i, j])
        senders = []
        for coin in coins[i, : min(k, len(best))]:
            source = random_ones if coin < epsilon else best
            senders.append(next(j for j in source if j not in senders))
        asked[i, senders] = True
        if not senders:
            weights[i, i] = 1.0
            continue
        for j in [*senders, i]:
            distance = np.linalg.norm(trained[j] - before[i])
            gain = loss(before[i], x[i], y[i], layers) - loss(trained[j], x[i], y[i], layers)
            worth[i, j] = 0.0 if distance == 0 else gain / distance
        total = max(abs(np.nansum(worth[i])), 1e-9)
        for j in senders:
            new[i, j] = affinity[i, j] + worth[i, j] / total
        positive = np.maximum(np.nan_to_num(worth[i]), 0.0)
        models[i] = before[i]
        if positive.sum() > 0:
            weights[i] = positive / positive.sum()
            for j in [*senders, i]:
                models[i] = models[i] + weights[i, j] * (trained[j] - before[i])
    return {"asked": asked, "worth": worth, "weights": weights, "models": models, "affinity": new}


def made(seed, m=4, graph=None, k=9, affinity=None, layers=(3, 2), scale=1.0, epsilon=0.0):
    numbers = Numbers(seed)
    p = size(layers)
    before, step = numbers.floats(m, p), numbers.floats(m, p, size=scale)
    graph = others(m) if graph is None else np.array(graph, bool)
    coins = abs(Numbers(seed + 90).floats(m, m)) * 15 / 16
    order = np.array([Numbers(seed + 91 + i).random.sample(range(m), m) for i in range(m)])
    return {
        "layers": list(layers),
        "before": before,
        "trained": before + step,
        "x": numbers.floats(m, 4, layers[0], size=2),
        "y": numbers.classes(m, 4, number=layers[-1]),
        "graph": graph,
        "affinity": np.zeros((m, m)) if affinity is None else np.array(affinity, float) * graph,
        "k": k,
        "epsilon": epsilon,
        "coins": coins,
        "order": order,
    }


def none_positive():
    """Clients at the optimum of balanced data: every other model is worse."""
    case = made(3, m=3)
    case["before"] = np.zeros_like(case["before"])
    case["x"] = np.ones_like(case["x"])
    case["y"] = np.tile([0, 1, 0, 1], (3, 1))
    return case


def an_equal_model():
    case = made(4, m=3)
    case["trained"][1] = case["before"][0]
    return case


RANKED = [[(3 * i + 5 * j) % 7 for j in range(6)] for i in range(6)]
RING = [[(i - j) % 6 in (1, 2, 4, 5) for j in range(6)] for i in range(6)]
ROWS = "[m, P], a row for each client"
METHOD = Method(
    name="FedFomo",
    configs=["fedfomo"],
    paper="Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021, arXiv 2012.08565",
    equation="section 3, eq. 3 and 4; section 3.2 for whom to ask",
    does="Each client asks the k neighbours of the highest affinity, averages what their models change by weights in "
    "proportion to the positive gain per distance on its own data, and adds the signed gains to the affinities.",
    inputs={
        **MODEL,
        "before": f"models before the round, {ROWS}",
        "trained": f"models after local training, {ROWS}",
        "x": "validation inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "affinity": "P before the round, [m, m]",
        "k": "how many models a client asks for",
        "epsilon": "probability of asking for a random model, for each of the k",
        "coins": "uniform numbers, [m, m]: the first, the second and so on of a client's k models is random if the coin is "
        "below epsilon",
        "order": "the random order of the others for each client, [m, m]: a random model is the one with the lowest number "
        "that is left",
    },
    outputs={
        "asked": "whose models a client asks for, [m, m]",
        "worth": "(L(before_i) - L(trained_j)) / ||trained_j - before_i||, [m, m]; null where i has not received j's",
        "weights": "of the models in the average, [m, m]; the receiver's own on the diagonal",
        "models": f"after the round, {ROWS}",
        "affinity": "P after the round, [m, m]",
    },
    readings=[
        (
            "Is the client's own trained model one of those that are averaged?",
            "yes; what the others are compared with is the model from before the round",
            "eq. 4 has the loss of the model of the round before, and eq. 3 sums over all models that are available, the "
            "client's own among them",
        ),
        (
            "Is a round random, or each of the k models?",
            "each of the k: the best that is left, or the next of the random order",
            "the authors' code",
        ),
        (
            "What if no model is an improvement?",
            "the client keeps its model from before the round",
            "eq. 3 adds a sum of nothing to it",
        ),
        (
            "How are weights normalised that are added to affinities?",
            "signed, over the absolute value of their sum, 1e-9 at least; the own model counts in the sum",
            "the paper only says that weights are added up; the authors' code does this",
        ),
        (
            "What does a client do that receives nothing?",
            "it keeps the model that it has trained",
            "nothing that is written applies to it, and it would stop learning at the first round without a gain",
        ),
    ],
    cases=[
        ("a round of four clients", made(1)),
        (
            "the two of the highest affinity",
            made(2, k=2, affinity=[[0, 3, 1, 2], [1, 0, 2, 3], [3, 2, 0, 1], [2, 1, 3, 0]]),
        ),
        ("some of the three are random", made(7, m=6, k=3, epsilon=0.5, affinity=RANKED)),
        ("all are random", made(8, m=6, k=2, epsilon=1.0, affinity=RANKED, graph=RING)),
        ("no model is an improvement", none_positive()),
        ("a model equal to one's own", an_equal_model()),
        ("one client receives nothing", made(5, m=3, graph=[[0, 0, 0], [1, 0, 1], [1, 0, 0]])),
        ("two layers", made(6, layers=(2, 2, 3))),
    ],
    function=fedfomo,
)
