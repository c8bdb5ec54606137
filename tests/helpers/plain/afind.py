"""AFIND+ (arXiv 2407.04460): in the reading of docs/afind.md, and as printed."""

import math

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, columns, cosine, grad, loss, size


def afind(layers, layer, before, initial, trained, x, y, graph, active, nu, tau, temperature):
    m, part = len(before), columns(layers, layer)
    proxies = (trained - initial)[:, part]
    cosines, selected = np.full((m, m), np.nan), np.zeros((m, m), bool)
    threshold, weights, models = np.zeros(m), np.zeros((m, m)), before.copy()
    for i in range(m):
        if not active[i]:
            continue
        near = [j for j in range(m) if graph[i, j] and active[j]]
        centre = np.mean(proxies[[*near, i]], 0)
        for j in near:
            cosines[i, j] = cosine(proxies[i] - centre, proxies[j] - centre)
        raised = {j: math.exp(cosines[i, j] / nu) for j in near}
        ratio = {j: len(near) * raised[j] / sum(raised.values()) for j in near}
        refined = [max((cosines[i, j] + 1) / 2, math.exp(-1)) for j in near]
        entropies = [-math.e * e * math.log(e) for e in refined]
        threshold[i] = tau * sum(entropies) / len(near) if near else 0.0
        chosen = [j for j in near if ratio[j] >= threshold[i]]
        selected[i, chosen] = True
        votes = {j: math.exp(-loss(trained[j], x[i], y[i], layers) / temperature) for j in [*chosen, i]}
        for j, vote in votes.items():
            weights[i, j] = vote / sum(votes.values())
        models[i] = weights[i] @ trained
    return {"cosines": cosines, "threshold": threshold, "selected": selected, "weights": weights, "models": models}


def afind_literal(layers, layer, before, trained, x, y, graph, probabilities, threshold, nu, tau, gamma, temperature):
    m, part = len(before), columns(layers, layer)
    selected, weights, models = graph & (probabilities >= threshold[:, None]), np.zeros((m, m)), trained.copy()
    probabilities, theta = probabilities.copy(), np.zeros(m)
    for i in range(m):
        chosen = [j for j in range(m) if selected[i, j]]
        mine = grad(before[i], x[i], y[i], layers)[part]
        similar = {j: cosine(mine, grad(before[i], x[j], y[j], layers)[part]) for j in chosen}
        refined = {j: (similar[j] + 1) / 2 for j in chosen}
        h = -sum(e * math.log(e) for e in refined.values() if e > 0)
        theta[i] = tau * (1 - 1 / (1 + math.exp(-h)))
        left = 1 - sum(probabilities[i, j] for j in range(m) if graph[i, j] and j not in chosen)
        highest = max(similar.values(), default=0.0)
        raised = {j: math.exp((similar[j] - highest) / nu) for j in chosen}
        for j in chosen:
            probabilities[i, j] = left * raised[j] / sum(raised.values())
        losses = {
            j: (1 - gamma) * loss(trained[i], x[j], y[j], layers) + gamma * loss(before[i], x[j], y[j], layers)
            for j in chosen
        }
        votes = {j: math.exp(-losses[j] / temperature) for j in chosen}
        for j in chosen:
            weights[i, j] = votes[j] / sum(votes.values())
        if chosen:
            models[i] = weights[i] @ trained
    return {
        "selected": selected,
        "weights": weights,
        "models": models,
        "probabilities": probabilities,
        "threshold": theta,
    }


def afind_distance(layers, layer, before, trained, x, y, graph, k, nu):
    m, part = len(before), columns(layers, layer)
    similarity, ratio = np.full((m, m), np.nan), np.full((m, m), np.nan)
    selected, models = np.zeros((m, m), bool), np.zeros_like(before)
    for i in range(m):
        near = [j for j in range(m) if graph[i, j]]
        mine = grad(before[i], x[i], y[i], layers)[part]
        apart = {j: math.dist(mine, grad(before[i], x[j], y[j], layers)[part]) for j in near}
        for j in near:
            similarity[i, j] = 1 - 2 * apart[j] / max(apart.values()) if max(apart.values()) else 1.0
        raised = {j: math.exp(similarity[i, j] / nu) for j in near}
        for j in near:
            ratio[i, j] = len(near) * raised[j] / sum(raised.values())
        chosen = sorted(near, key=lambda j: (apart[j], j))[:k]
        selected[i, chosen] = True
        models[i] = np.mean(trained[[*chosen, i]], 0)
    return {"similarity": similarity, "ratio": ratio, "selected": selected, "models": models}


LAYERS = [2, 3, 2]


def made(seed, m=5, graph=None, active=None, nu=0.2, tau=0.5, temperature=1.0, pairs=True):
    numbers, p = Numbers(seed), size(LAYERS)
    initial = np.tile(numbers.floats(p), (m, 1))
    kinds = numbers.floats(2, p, size=2)
    trained = initial + (kinds[np.arange(m) % 2] if pairs else 0) + numbers.floats(m, p, size=0.5)
    return {
        "layers": LAYERS,
        "layer": 0,
        "before": initial + numbers.floats(m, p, size=0.5),
        "initial": initial,
        "trained": trained,
        "x": numbers.floats(m, 3, 2, size=2),
        "y": numbers.classes(m, 3),
        "graph": others(m) if graph is None else np.array(graph, bool),
        "active": np.ones(m, bool) if active is None else np.array(active, bool),
        "nu": nu,
        "tau": tau,
        "temperature": temperature,
    }


def all_equal():
    case = made(5, m=3)
    case["trained"] = np.tile(case["trained"][:1], (3, 1))
    return case


def printed(seed, threshold, m=4, nu=0.5, tau=0.5, graph=None):
    case = made(seed, m, graph)
    for name in ("initial", "active"):
        del case[name]
    known = case["graph"]
    shares = known * (1 + abs(Numbers(seed + 50).floats(m, m)))
    case["probabilities"] = shares / np.maximum(shares.sum(1, keepdims=True), 1)
    if not known.any(1).all():
        case["probabilities"] = shares / np.where(shares.sum(1, keepdims=True) > 0, shares.sum(1, keepdims=True), 1)
    case["threshold"] = np.array(threshold, float)
    return {**case, "nu": nu, "tau": tau, "gamma": 0.9}


def distant(seed, m=4, k=2, nu=0.2, graph=None):
    case = made(seed, m, graph, nu=nu)
    for name in ("initial", "active", "tau", "temperature"):
        del case[name]
    return {**case, "k": k}


PAPER = (
    "Smart Sampling: Helping from Friendly Neighbors for Decentralized Federated Learning, arXiv 2407.04460 (AFIND+)"
)
ROWS = "[m, P], a row for each client"
INPUTS = {
    **MODEL,
    "layer": "the layer that is compared, its weights and biases, from 0",
    "before": f"models before the round, {ROWS}",
}
METHOD = Method(
    name="AFIND+",
    configs=["afind"],
    paper=PAPER,
    equation="algorithm 1; eq. 7 and 8, 10 to 14, 16; remark 3.3",
    does="A client compares one layer of its neighbours' models with its own, takes those whose share of similarity "
    "reaches a threshold that falls where neighbours are similar, and averages their models and its own by their loss.",
    inputs={
        **INPUTS,
        "initial": f"the first models of the run, {ROWS}",
        "trained": f"models after local training, {ROWS}",
        "x": "training inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "active": "who is active, [m]",
        "nu": "temperature of eq. 8",
        "tau": "of eq. 13",
        "temperature": "T of eq. 16",
    },
    outputs={
        "cosines": "of the layer's change since the start, less its mean over the neighbours and the client itself, "
        "[m, m]; null where there is no neighbour that is active",
        "threshold": "theta, [m]; 0 of clients that have dropped out, and of those without neighbours",
        "selected": "neighbours with n_i p_ij >= theta_i, [m, m]",
        "weights": "of the models in the average, [m, m]; rows of zeros for clients that have dropped out",
        "models": f"after the round, {ROWS}; one that has dropped out keeps its own",
    },
    readings=[
        (
            "Probabilities sum to 1 and the threshold does not shrink with the number n_i of neighbours (eq. 8, 13)",
            "n_i p_ij is compared, so that 1 is an average neighbour",
            "as printed, the number of neighbours and not their similarity decides",
        ),
        (
            "Entropy is summed, goes through a sigmoid, and raises the threshold the more similar neighbours are",
            "theta = tau times the mean over neighbours of -e exp(1) ln(e), e = max((cos + 1) / 2, 1 / exp(1))",
            "remark 3.3 and the introduction want a lower threshold among similar neighbours; below 1/e an opposite "
            "neighbour would count as a certain one",
        ),
        (
            "Which proxy?",
            "the layer's change since the first models, less its mean over the neighbours that are active and the client",
            "gradients do not tell friends apart once friends are averaged",
        ),
        (
            "Eq. 14 weighs the sender j by F_j(w_i), the receiver's model on the sender's data",
            "by the loss of the received model on the receiver's data",
            "it asks what the received model is worth to the receiver, which need not send its own to be told",
        ),
        ("Is the client's own model in the sum of eq. 16?", "yes", "with an empty selection the model would be lost"),
    ],
    cases=[
        ("five clients of two kinds", made(1)),
        (
            "a sparse graph, and a client without neighbours",
            made(
                2, graph=np.array([[0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0]])
            ),
        ),
        ("one has dropped out", made(3, active=[1, 1, 0, 1, 1])),
        ("threshold 0: all are selected", made(4, tau=0.0)),
        ("a threshold that none reaches", made(4, tau=1000.0)),
        ("equal models: all cosines are 0", all_equal()),
        ("low temperatures", made(6, nu=0.05, temperature=0.25)),
        ("all have dropped out", made(7, m=3, active=[0, 0, 0])),
    ],
    function=afind,
)
LITERAL = Method(
    name="AFIND+ as printed",
    configs=["afind_literal"],
    paper=PAPER,
    equation="algorithm 1; eq. 7 to 16",
    does="A client selects the neighbours whose last probability reaches its last threshold, sends them its model, "
    "compares its gradient there with theirs, refreshes their probabilities and its threshold for the next round, and "
    "averages their models by the loss that its own model has on their data.",
    inputs={
        **INPUTS,
        "trained": f"models after local training, {ROWS}",
        "x": "training inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "probabilities": "p of the last round, [m, m]; they sum to 1 for each client",
        "threshold": "theta of the last round, [m]",
        "nu": "temperature of eq. 8",
        "tau": "of eq. 13",
        "temperature": "T of eq. 16",
        "gamma": "of eq. 15, the share of the loss before local training",
    },
    outputs={
        "selected": "neighbours with p_ij >= theta_i of the last round, [m, m]",
        "weights": "of the models in the average, [m, m]",
        "models": f"after the round, {ROWS}",
        "probabilities": "p for the next round, [m, m]",
        "threshold": "theta for the next round, [m]",
    },
    readings=[
        (
            "Eq. 9 multiplies by 1 minus a sum whose index is not clear",
            "by what the neighbours that were not selected leave of 1",
            "all probabilities must sum to 1",
        ),
        (
            "At which model are gradients taken?",
            "at the receiver's from before the round, on each client's own data",
            "lines 7 and 11 of algorithm 1 have w_i in both",
        ),
        (
            "What if none is selected?",
            "the client keeps the model that it has trained; theta is tau / 2, probabilities stay",
            "the sum of eq. 10 is 0 then, and eq. 16 has no terms",
        ),
        (
            "Which losses does eq. 15 mix?",
            "those of the receiver's model on the sender's data: (1 - gamma) of the trained one, gamma of the one before",
            "eq. 15 has F_j at w_i before and after K steps; line 7 evaluates at w_i, and does not train there",
        ),
    ],
    cases=[
        ("the first round: theta is 0", printed(11, [0, 0, 0, 0])),
        ("some are selected", printed(12, [0.3, 0.35, 0.2, 0.33])),
        ("one selects none", printed(13, [1.1, 0.2, 0.3, 0.0])),
        ("a path", printed(14, [0.0, 0.4, 0.1], m=3, graph=[[0, 1, 0], [1, 0, 1], [0, 1, 0]])),
    ],
    function=afind_literal,
)
DISTANCE = Method(
    name="AFIND+ by distances",
    configs=["afind --selection.proxy grad_at_receiver --selection.similarity distance"],
    paper=PAPER,
    equation="eq. 7 and 8; algorithm 1, lines 7 and 11",
    does="A client compares its gradient with those that its neighbours have at its model, and averages the models of "
    "the k nearest and its own with equal weights.",
    inputs={
        **INPUTS,
        "trained": f"models after local training, {ROWS}",
        "x": "training inputs, [m, samples, inputs]",
        "y": "their classes, [m, samples]",
        "graph": "from whom a client can receive, [m, m], receiver by sender",
        "k": "neighbours to choose",
        "nu": "temperature of eq. 8",
    },
    outputs={
        "similarity": "1 - 2 d / d_max, d the Euclidean distance of the two gradients of the layer at the receiver's "
        "model and d_max the largest one in the neighbourhood, [m, m]; null where there is no neighbour",
        "ratio": "n_i p_ij of eq. 8 with these similarities, [m, m]; null where there is no neighbour",
        "selected": "the k nearest; of equals the lowest number, [m, m]",
        "models": f"after the round, {ROWS}",
    },
    readings=[
        (
            "How does a distance become a similarity?",
            "linearly, from 1 at distance 0 to -1 at the largest distance in the neighbourhood",
            "eq. 7 has a distance, eq. 8 and 10 want a number between -1 and 1; the order is that of eq. 7",
        )
    ],
    cases=[
        ("four clients", distant(21)),
        ("a path", distant(22, m=3, k=1, graph=[[0, 1, 0], [1, 0, 1], [0, 1, 0]])),
        ("a client without neighbours", distant(23, m=3, graph=[[0, 0, 1], [0, 0, 0], [1, 0, 0]])),
        ("all are taken, at a low temperature", distant(24, k=9, nu=0.05)),
    ],
    function=afind_distance,
)
