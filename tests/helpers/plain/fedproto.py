"""FedProto: mean features of classes instead of models."""

import math

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, columns, forward, grad, unpacked
from plain.neighbours import CYCLE, RATE, ROWS, STAR, trains


def pull(w, x, y, layers, prototypes):
    """The gradient of the mean squared error of features to the prototypes of their classes, 0 to unknown ones."""
    inputs, _ = forward(w, x, layers)
    error = np.nan_to_num(2 * (inputs[-1] - prototypes[y]) / inputs[-1].size)
    parts = [np.zeros(len(columns(layers, len(layers) - 2)))]
    for place in reversed(range(len(layers) - 2)):
        error = error * (1 - inputs[place + 1] ** 2)
        parts = [(error.T @ inputs[place]).ravel(), error.sum(0), *parts]
        error = error @ unpacked(w, layers)[place][0]
    return np.concatenate(parts)


def nearest(w, x, layers, prototypes):
    """The class with the nearest prototype for each sample."""
    features = forward(w, x, layers)[0][-1]
    return [min(range(len(prototypes)), key=lambda c: far(z, prototypes[c])) for z in features]


def far(z, prototype):
    return math.inf if np.isnan(prototype).any() else math.dist(z, prototype)


def fedproto(layers, models, prototypes, x, y, server, graph, active, lr, lam, weighting, rounds, queries):
    models, prototypes, classes = models.copy(), prototypes.copy(), layers[-1]
    up = [i for i in range(len(models)) if active[i]]
    for _ in range(rounds):
        own = np.full(prototypes.shape, np.nan)
        counts = np.zeros((len(models), classes))
        for i in up:
            for bx, by in zip(x[i], y[i], strict=True):
                step = grad(models[i], bx, by, layers) + lam * pull(models[i], bx, by, layers, prototypes[i])
                models[i] = models[i] - lr * step
            all_x, all_y = np.concatenate(list(x[i])), np.concatenate(list(y[i]))
            features = forward(models[i], all_x, layers)[0][-1]
            for c in set(all_y.tolist()):
                counts[i, c] = (all_y == c).sum()
                own[i, c] = features[all_y == c].mean(0)
        if server:
            for c in range(classes):
                have = [j for j in up if counts[j, c]]
                if have:  # a class that no client has sent keeps what the server knows
                    weights = counts[have, c] if weighting == "samples" else np.ones(len(have))
                    prototypes[:, c] = weights @ own[have, c] / weights.sum()
        for i in [] if server else up:
            for c in range(classes):
                have = [j for j in up if (j == i or graph[i, j]) and counts[j, c]]
                if have:
                    weights = counts[have, c] if weighting == "samples" else np.ones(len(have))
                    prototypes[i, c] = weights @ own[have, c] / weights.sum()
                else:
                    prototypes[i, c] = np.nan
    predicted = [nearest(w, queries, layers, own) for w, own in zip(models, prototypes, strict=True)]
    return {"models": models, "prototypes": prototypes, "predicted": np.array(predicted)}


def case(
    seed,
    graph=CYCLE,
    weighting="samples",
    rounds=1,
    first=False,
    active=None,
    lam=0.5,
    layers=(3, 2, 3),
    server=False,
    **more,
):
    m = len(graph)
    made = trains(seed, m=m, layers=layers, samples=4, graph=graph, lr=0.25, lam=lam, rounds=rounds, **more)
    shape = (m, layers[-1], layers[-2])
    prototypes = np.full(shape, np.nan) if first else Numbers(seed + 50).floats(*shape)
    active = np.ones(m, bool) if active is None else np.array(active)
    if server:
        prototypes[:] = prototypes[0]
    queries = Numbers(seed + 60).floats(6, layers[0], size=2)
    return {
        **made,
        **{"prototypes": prototypes, "active": active, "weighting": weighting, "server": server, "queries": queries},
    }


def one_has_a_class_of_its_own(case):
    """Class 2 is that of the last client only."""
    for client, y in enumerate(case["y"]):
        y[...] = y % 2 if client < len(case["y"]) - 1 else 2
    return case


def some_unknown(case, *classes):
    case["prototypes"][:, list(classes)] = np.nan
    return case


METHOD = Method(
    name="FedProto",
    configs=["fedproto", "fedproto --topology complete"],
    paper="Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, arXiv 2105.00243",
    equation="eq. 3, 6 and 7, algorithm 1; with the server, and with neighbours instead of it",
    does="A client descends the mean over a batch of loss + lam ||phi(x) - P_y||^2 / d, phi(x) the d inputs of its last layer; "
    "then the mean of phi(x) over its samples of each class is its prototype C_c, and P_c becomes the mean of C_c over "
    "itself and its neighbours that have the class, weighted by their samples of it. A server averages those of all active "
    "clients, and all clients have its P. Models are not mixed. A sample is predicted to be of the class with the nearest P_c.",
    inputs={
        **MODEL,
        "models": f"before the first round, {ROWS}",
        "prototypes": "P of each client and class before the first round, [m, C, d]; null where a client has none, and then "
        "no distance is added for the samples of the class",
        "x": "training data of each client, [batches, samples, inputs]",
        "y": "their classes, [batches, samples]",
        "server": "whether a server averages, instead of each client",
        "graph": "from whom a client receives, [m, m]; without a server",
        "active": "who is active, [m], in all rounds; the others keep everything",
        **RATE,
        "lam": "weight of the distance",
        "weighting": "samples, as above; equal: clients that have a class count the same",
        "rounds": "how many",
        "queries": "samples to be classified after the rounds, [samples, inputs]",
    },
    outputs={
        "models": f"after the rounds, {ROWS}",
        "prototypes": "P after the rounds, [m, C, d]; null where neither the client nor a neighbour has the class, or the "
        "server has never received any",
        "predicted": "by each client, [m, samples]: the class with the nearest prototype",
    },
    main=["models", "prototypes"],
    readings=[
        (
            "Equation 6 divides by the number of clients that have the class, and weighs them by their samples. Both?",
            "shares of samples, which sum to 1; equal shares as the other reading",
            "with both, prototypes are shorter than features by the number of clients",
        ),
        (
            "Which distance?",
            "the squared error of each sample's features, the mean over features and samples",
            "equation 7 leaves the distance open and compares means; the authors' code has this one, with lam = 1",
        ),
        (
            "What does a server have of a class that none of the active clients has?",
            "what it had before",
            "the paper does not say; the authors' code, where all clients take part, has no prototype then",
        ),
        (
            "When are the features of a client's own prototypes computed?",
            "by the trained model, on all training samples",
            "equation 3 has the local model and all samples",
        ),
    ],
    cases=[
        ("a first round", case(401, first=True)),
        ("a later round", case(402)),
        ("several batches, different sizes", case(403, count=[1, 3, 2, 1, 2])),
        ("three rounds from the start", case(404, graph=STAR, first=True, rounds=3)),
        ("two have dropped out", case(405, graph=others(5), active=[True, False, True, True, False], rounds=2)),
        ("clients count the same", case(406, weighting="equal", rounds=2)),
        ("no neighbours", case(407, graph=np.zeros((5, 5), bool))),
        ("a server, from the start", case(409, server=True, first=True, rounds=2)),
        (
            "a server, two have dropped out, clients count the same",
            case(410, server=True, active=[True, False, True, True, False], weighting="equal", rounds=2),
        ),
        (
            "a server keeps the prototype of a class that no active client has",
            one_has_a_class_of_its_own(case(411, server=True, active=[True, True, True, True, False], rounds=2)),
        ),
        (
            "a server knows one class of three",
            some_unknown(case(412, server=True, active=[True, False, True, True, True], rounds=1), 0, 2),
        ),
        ("lam = 0: local training", case(408, lam=0.0)),
    ],
    function=fedproto,
)
