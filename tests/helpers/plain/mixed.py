"""Neighbours in the place of a server: Gossip, D-SGD, gradient tracking, push-sum, PENS, FedeRiCo, pFedGraph, PACFL; kNN-Per."""

import math

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, columns, forward, grad, loss, size, softmax


def gossip(before, trained, chosen, active):
    m = len(before)
    weights, models = np.zeros((m, m)), before.copy()
    for i in range(m):
        if active[i]:
            voters = [i, *(j for j in range(m) if chosen[i, j] and active[j])]
            weights[i, voters] = 1 / len(voters)
            models[i] = np.mean(trained[voters], 0)
    return {"weights": weights, "models": models}


def metropolis(graph, active):
    m = len(graph)
    there = graph & active[:, None] & active[None, :]
    degree, weights = there.sum(1), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if there[i, j]:
                weights[i, j] = 1 / (1 + max(degree[i], degree[j]))
        weights[i, i] = 1 - weights[i].sum()
    return weights


def dsgd(layers, models, x, y, graph, active, lr):
    trained = models.copy()
    for i in range(len(models)):
        if active[i]:
            for bx, by in zip(x[i], y[i], strict=True):
                trained[i] = trained[i] - lr * grad(trained[i], bx, by, layers)
    weights = metropolis(graph, active)
    return {"weights": weights * active[:, None], "models": weights @ trained}


def gradient_tracking(layers, models, correction, x, y, graph, lr, steps, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for _ in range(steps):
                trained[i] = trained[i] - lr * (grad(trained[i], x[i][0], y[i][0], layers) + correction[i])
        z = (models - trained) / (steps * lr)
        correction = correction + weights @ z - z
        models = weights @ trained
    return {"models": models, "correction": correction}


def d2(layers, models, x, y, graph, lr, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))

    def grads(at):
        return np.array([grad(at[i], x[i][0], y[i][0], layers) for i in range(m)])

    former, now = models, weights @ (models - lr * grads(models))
    for _ in range(rounds - 1):
        former, now = now, weights @ (2 * now - former - lr * grads(now) + lr * grads(former))
    return {"models": now}


def qg_dsgdm(layers, models, momentum, x, y, graph, lr, beta, mu, nesterov, rounds):
    m, weights = len(models), metropolis(graph, np.ones(len(models), bool))
    for _ in range(rounds):
        trained = models.copy()
        for i in range(m):
            for bx, by in zip(x[i], y[i], strict=True):
                g = grad(trained[i], bx, by, layers)
                step = beta * momentum[i] + g
                trained[i] = trained[i] - lr * (g + beta * step if nesterov else step)
        after = weights @ trained
        change = (models - after) / (lr * np.array([len(part) for part in x]))[:, None]
        momentum, models = mu * momentum + (1 - mu) * change, after
    return {"models": models, "momentum": momentum}


def dfedsam(layers, models, x, y, graph, active, lr, rho, steps):
    trained, weights = models.copy(), metropolis(graph, active)
    for i in range(len(models)):
        for bx, by in zip(x[i], y[i], strict=True) if active[i] else []:
            g = grad(trained[i], bx, by, layers)
            length = np.linalg.norm(g)
            worst = trained[i] + rho * g / length if length > 0 else trained[i]
            trained[i] = trained[i] - lr * grad(worst, bx, by, layers)
    for _ in range(steps):
        trained = weights @ trained
    return {"models": trained}


def push_sum(models, held, trained, graph):
    m = len(models)
    numerators = held[:, None] * models + trained - models
    shares = np.zeros((m, m))
    for j in range(m):
        receivers = [j, *(i for i in range(m) if graph[i, j])]
        shares[receivers, j] = 1 / len(receivers)
    held = shares @ held
    return {"held": held, "models": shares @ numerators / held[:, None]}


def pens(layers, trained, x, y, sampled, top, stage_one, counts):
    m = len(trained)
    losses, chosen, models = np.full((m, m), np.nan), np.zeros((m, m), bool), trained.copy()
    for i in range(m):
        drawn = [j for j in range(m) if sampled[i, j]]
        for j in drawn:
            losses[i, j] = loss(trained[j], x[i], y[i], layers)
        best = sorted(drawn, key=lambda j: losses[i, j])[:top]
        chosen[i, best] = True
        models[i] = np.mean(trained[[i, *best]], 0)
    counts = counts + chosen
    return {
        "losses": losses,
        "chosen": chosen,
        "counts": counts,
        "peers": counts > top * stage_one / (m - 1) + 1e-9,
        "models": models,
    }


def federico(layers, trained, x, y, fetched, averages, beta):
    m = len(trained)
    averages, weights, models = averages.copy(), np.zeros((m, m)), trained.copy()
    for i in range(m):
        seen = [j for j in range(m) if fetched[i, j]]
        if not seen:
            weights[i, i] = 1.0
            continue
        for j in [*seen, i]:
            new, old = loss(trained[j], x[i], y[i], layers), averages[i, j]
            averages[i, j] = new if math.isnan(old) else (1 - beta) * old + beta * new
        raised = {j: math.exp(-averages[i, j]) for j in [*seen, i]}
        for j, number in raised.items():
            weights[i, j] = number / sum(raised.values())
        models[i] = weights[i] @ trained
    return {"averages": averages, "weights": weights, "models": models}


def federico_em(layers, models, x, y, fetched, averages, beta, lr):
    m = len(models)
    averages, weights, new = averages.copy(), np.zeros((m, m)), models.copy()
    for i in range(m):
        mine = [*(j for j in range(m) if fetched[i, j]), i]
        for j in mine:
            now, old = loss(models[j], x[i][0], y[i][0], layers), averages[i, j]
            averages[i, j] = now if math.isnan(old) else (1 - beta) * old + beta * now
        raised = {j: math.exp(-averages[i, j]) for j in mine}
        for j, number in raised.items():
            weights[i, j] = number / sum(raised.values())
            new[j] = new[j] - weights[i, j] * lr * grad(models[j], x[i][0], y[i][0], layers)
    return {"averages": averages, "weights": weights, "models": new}


def on_simplex(point):
    """The nearest point of the simplex, by sorting (Duchi et al. 2008)."""
    ordered = np.sort(point)[::-1]
    sums = np.cumsum(ordered) - 1
    last = max(k for k in range(len(point)) if ordered[k] - sums[k] / (k + 1) > 0)
    return np.maximum(point - sums[last] / (last + 1), 0)


def pfedgraph(layers, initial, models, direction, x, y, graph, alpha, lam, lr):
    m, trained = len(models), models.copy()
    for i in range(m):
        for bx, by in zip(x[i], y[i], strict=True):
            w, r = trained[i], direction[i]
            length = np.linalg.norm(w)
            pull = r / length - (w @ r) * w / length**3
            trained[i] = w - lr * (grad(w, bx, by, layers) - lam * pull)
    samples = np.array([part.shape[0] * part.shape[1] for part in x])
    weights, moved = np.zeros((m, m)), trained - initial
    for i in range(m):
        mine = [j for j in range(m) if graph[i, j] or i == j]
        shares = samples[mine] / samples[mine].sum()
        cosines = [moved[i] @ moved[j] / np.linalg.norm(moved[i]) / np.linalg.norm(moved[j]) for j in mine]
        weights[i, mine] = on_simplex(shares + np.array(cosines) / (2 * alpha))
    unit = trained / np.linalg.norm(trained, axis=1, keepdims=True)
    return {"weights": weights, "models": weights @ trained, "direction": weights @ unit}


def weights_in(layers):
    """Where each layer's weights are in a row, without the biases."""
    return [columns(layers, k)[: layers[k] * layers[k + 1]] for k in range(len(layers) - 1)]


def dispfl(layers, models, masks, x, y, graph, lr, prune, round, rounds):
    m, trained, new = len(models), models.copy(), masks.copy()
    share = prune / 2 * (1 + math.cos(math.pi * round / rounds))
    for i in range(m):
        w = models[i] * masks[i]
        w = w - lr * masks[i] * grad(w, x[i][0], y[i][0], layers)
        trained[i], dense = w, grad(w, x[i][0], y[i][0], layers)
        for at in weights_in(layers):
            held = [c for c in at if masks[i, c]]
            stay = sorted(held, key=lambda c: (-abs(w[c]), c))[: len(held) - math.ceil(share * len(held) - 1e-9)]
            out = [c for c in at if c not in stay]
            grown = sorted(out, key=lambda c: (-abs(dense[c]), c))[: len(held) - len(stay)]
            new[i, at] = 0
            new[i, stay + grown] = 1
    after = np.zeros_like(models)
    for i in range(m):
        near = [i, *(j for j in range(m) if graph[i, j])]
        sums, counts = trained[near].sum(0), masks[near].sum(0)
        after[i] = new[i] * np.where(counts > 0, sums / np.maximum(counts, 1), 0)
    return {"masks": new, "models": after}


def signature(x, y, vectors):
    found = []
    for label in sorted(set(y.tolist())):
        left = np.linalg.svd(x[y == label].T, full_matrices=False)[0][:, :vectors]
        found.append(left)
    return np.linalg.qr(np.concatenate(found, 1))[0]


def pacfl(trained, x, y, vectors, threshold):
    m = len(trained)
    spans = [signature(x[i], y[i], vectors) for i in range(m)]
    degrees = np.zeros((m, m))
    for i in range(m):
        for j in range(i):
            cosine = np.linalg.svd(spans[i].T @ spans[j], compute_uv=False)[0]
            degrees[i, j] = degrees[j, i] = math.degrees(math.acos(min(1.0, cosine)))
    groups = [[i] for i in range(m)]
    while len(groups) > 1:
        pairs = [
            (np.mean(degrees[np.ix_(a, b)]), p, q) for p, a in enumerate(groups) for q, b in enumerate(groups) if p < q
        ]
        apart, p, q = min(pairs)
        if apart > threshold:
            break
        groups[p] += groups.pop(q)
    clusters, models = np.zeros(m, int), trained.copy()
    for number, group in enumerate(sorted(map(sorted, groups))):
        clusters[group] = number
        counts = np.array([len(y[i]) for i in group])
        models[group] = counts / counts.sum() @ trained[group]
    return {"degrees": degrees, "clusters": clusters, "models": models}


def knn_per(layers, model, x, y, queries, k, scale, weight):
    inputs, scores = forward(model, queries, layers)
    stored, classes = forward(model, x, layers)[0][-1], layers[-1]
    found = []
    for features, p in zip(inputs[-1], softmax(scores), strict=True):
        squared = ((stored - features) ** 2).sum(1)
        nearest = sorted(range(len(x)), key=lambda n: (squared[n], n))[:k]
        votes = np.zeros(classes)
        for n in nearest:
            votes[y[n]] += math.exp(-(squared[n] - squared[nearest[0]]) / (len(features) * scale))
        found.append(weight * votes / votes.sum() + (1 - weight) * p if len(nearest) else p)
    return {"probabilities": np.array(found)}


# --- examples ---------------------------------------------------------------------------------------------------------
CYCLE = np.array([[(i - j) % 5 in (1, 4) for j in range(5)] for i in range(5)])
STAR = np.array([[(i == 0) != (j == 0) for j in range(5)] for i in range(5)])
ARCS = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]], bool)
ALL = np.ones(5, bool)


def rows(seed, m=5, p=4, **more):
    numbers = Numbers(seed)
    return {"before": numbers.floats(m, p), "trained": numbers.floats(m, p, size=2), **more}


def trains(seed, m=5, count=1, layers=(3, 2), samples=2, **more):
    numbers = Numbers(seed)
    counts = [count] * m if isinstance(count, int) else count
    models = numbers.floats(m, size(layers))
    x = [numbers.floats(c, samples, layers[0], size=2) for c in counts]
    y = [numbers.classes(c, samples, number=layers[-1]) for c in counts]
    return {"layers": list(layers), "models": models, "x": x, "y": y, **more}


def judged(seed, m=5, layers=(3, 2), **more):
    numbers = Numbers(seed)
    trained = numbers.floats(m, size(layers), size=2)
    data = {"x": numbers.floats(m, 4, layers[0], size=2), "y": numbers.classes(m, 4, number=layers[-1])}
    return {"layers": list(layers), "trained": trained, **data, **more}


def averages(seed, m, unknown):
    found = abs(Numbers(seed).floats(m, m, size=2))
    for i, j in unknown:
        found[i, j] = np.nan
    return found


def of_pfedgraph(seed, graph, count=1, first=False, **more):
    case = trains(seed, count=count, **{"graph": graph, "alpha": 0.8, "lam": 0.25, "lr": 0.25, **more})
    initial, direction = Numbers(seed + 50).floats(8), Numbers(seed + 60).floats(5, 8)
    return {**case, "initial": initial, "direction": direction * (not first)}


def subspaces(seed, threshold, kinds=(0, 0, 1, 1, 0), vectors=1, noise=0.5, width=6):
    numbers, m = Numbers(seed), len(kinds)
    bases = numbers.floats(2, 2, width, size=2)
    x = np.array([[4 * bases[kind, n % 2] for n in range(6)] for kind in kinds]) + numbers.floats(
        m, 6, width, size=noise
    )
    y = np.tile([0, 1, 0, 1, 0, 1], (m, 1))
    return {"trained": numbers.floats(m, 2 * width + 2), "x": x, "y": y, "vectors": vectors, "threshold": threshold}


def remembered(seed, samples=6, k=3, layers=(3, 2, 3), **more):
    numbers = Numbers(seed)
    case = {
        "layers": list(layers),
        "model": numbers.floats(size(layers), size=2),
        "x": numbers.floats(samples, layers[0], size=2),
    }
    y = numbers.classes(samples, number=layers[-1])
    return {
        **case,
        "y": y,
        "queries": numbers.floats(4, layers[0], size=2),
        "k": k,
        "scale": 1.0,
        "weight": 0.5,
        **more,
    }


GRAPH = {"graph": "from whom a client can receive, [m, m], receiver by sender"}
ACTIVE = {"active": "who is up, [m]"}
ROWS = "[m, P], a row for each client"
TRAINED = {"trained": f"models after local training, {ROWS}"}
DATA = {
    "x": "training data of each client, [batches, samples, inputs]; batches are taken once, in this order",
    "y": "their classes, [batches, samples]",
}
OWN = {"x": "training inputs, [m, samples, inputs]", "y": "their classes, [m, samples]"}
RATE = {"lr": "learning rate of plain SGD"}
ORDER = ("Average, then train, or the other way round?", "train, then average", "so that all methods here do the same")
GOSSIP = Method(
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
    does="A client that is up averages its own model and those of the chosen clients that are up.",
    inputs={"before": f"models before the round, {ROWS}", **TRAINED, "chosen": "[m, m], client by sender", **ACTIVE},
    outputs={"weights": "[m, m]", "models": f"after the round, {ROWS}"},
    readings=[("What does a client that is down do?", "it keeps its model", "it has no part in the round")],
    cases=[
        ("three chosen, some are down", rows(1, chosen=others(5), active=np.array([1, 0, 1, 1, 0], bool))),
        ("a cycle", rows(2, chosen=CYCLE, active=ALL)),
        ("none is chosen", rows(3, chosen=np.zeros((5, 5), bool), active=ALL)),
        ("all are down", rows(4, chosen=others(5), active=~ALL)),
    ],
    function=gossip,
)
DSGD = Method(
    name="D-SGD",
    configs=["dsgd"],
    paper="Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017, arXiv 1705.09056; weights of Xiao, Boyd and Lall, IPSN 2005",
    equation="algorithm 1; Metropolis weights: 1 / (1 + max(d_i, d_j))",
    does="Clients take a step on each batch, then average by Metropolis weights of the graph of those that are up.",
    inputs={**MODEL, "models": f"before the round, {ROWS}", **DATA, "graph": "undirected, [m, m]", **ACTIVE, **RATE},
    outputs={"weights": "[m, m]; rows of zeros for clients that are down", "models": f"after the round, {ROWS}"},
    readings=[
        ("Which W?", "Metropolis weights of the round's graph", "any symmetric doubly stochastic matrix will do"),
        ORDER,
    ],
    cases=[
        ("one step on a cycle", trains(11, graph=CYCLE, active=ALL, lr=0.25)),
        ("two steps on a star", trains(12, count=2, graph=STAR, active=ALL, lr=0.25)),
        ("the centre of a star is down", trains(13, graph=STAR, active=np.arange(5) > 0, lr=0.25)),
        (
            "two are down, two layers",
            trains(14, layers=(3, 2, 2), graph=CYCLE, active=np.array([1, 0, 1, 1, 0], bool), lr=0.5),
        ),
        ("all are down", trains(15, graph=CYCLE, active=~ALL, lr=0.25)),
    ],
    function=dsgd,
)
TRACKING = Method(
    name="Gradient tracking with local steps",
    configs=["gradient_tracking"],
    paper="Liu, Lin, Koloskova and Stich, Decentralized Gradient Tracking with Local Steps, arXiv 2301.01313 (K-GT)",
    equation="algorithm 1, with a step of communication of 1",
    does="Local steps follow the gradient plus a correction c. With z the mean step of the round, c becomes c + W z - z, "
    "and models become W w; W are Metropolis weights.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "correction": f"c before the round, {ROWS}",
        **DATA,
        "graph": "undirected, [m, m]",
        **RATE,
        "steps": "local steps in a round, all on the one batch",
        "rounds": "how many rounds",
    },
    outputs={"models": f"after the rounds, {ROWS}", "correction": f"c after the rounds, {ROWS}"},
    readings=[
        ("Where do corrections start?", "given; at 0 in this library", "the paper's first ones sum to 0, too"),
        ("The step of communication", "1", "mixing is as with any other rule"),
    ],
    cases=[
        ("one step", trains(21, correction=np.zeros((5, 8)), graph=CYCLE, lr=0.25, steps=1, rounds=1)),
        (
            "four steps, corrections given",
            trains(
                22, correction=np.outer([1, -1, 0, 2, -2], np.arange(8)) / 16, graph=STAR, lr=0.25, steps=4, rounds=1
            ),
        ),
        ("three rounds of two steps", trains(23, correction=np.zeros((5, 8)), graph=CYCLE, lr=0.25, steps=2, rounds=3)),
    ],
    function=gradient_tracking,
)
UNDIRECTED = {**DATA, "graph": "undirected, [m, m]; W are its Metropolis weights, 1 / (1 + max(d_i, d_j))"}
D2 = Method(
    name="D2",
    configs=["d2"],
    paper="Tang et al., D2: Decentralized Training over Decentralized Data, ICML 2018, arXiv 1803.07068",
    equation="algorithm 1",
    does="x(1) = W (x(0) - lr g(0)), then x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1)), g the gradients at x.",
    inputs={**MODEL, "models": f"x(0), {ROWS}", **UNDIRECTED, **RATE, "rounds": "how many rounds"},
    outputs={"models": f"after the rounds, {ROWS}"},
    readings=[],
    cases=[
        ("the first round is D-SGD", trains(91, graph=CYCLE, lr=0.25, rounds=1)),
        ("two rounds", trains(92, graph=CYCLE, lr=0.25, rounds=2)),
        ("five rounds on a star, two layers", trains(93, layers=(3, 2, 2), graph=STAR, lr=0.125, rounds=5)),
    ],
    function=d2,
)


def quasi_global(seed, graph=CYCLE, momentum=True, beta=0.75, mu=0.75, nesterov=False, rounds=1, **more):
    case = trains(
        seed, **{"graph": graph, "lr": 0.25, "beta": beta, "mu": mu, "nesterov": nesterov, "rounds": rounds, **more}
    )
    return {**case, "momentum": Numbers(seed + 50).floats(*case["models"].shape) * momentum}


QG = Method(
    name="QG-DSGDm",
    configs=["qg_dsgdm"],
    paper="Lin, Karimireddy, Stich and Jaggi, Quasi-Global Momentum, ICML 2021, arXiv 2102.04761",
    equation="algorithm 1",
    does="Steps follow beta m + g; models are mixed by W; the buffer m becomes mu m + (1 - mu) (x before - x after the "
    "mixing) / lr.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "momentum": f"m before the round, {ROWS}",
        **UNDIRECTED,
        **RATE,
        "beta": "weight of m in a step",
        "mu": "weight of the former m in the new one",
        "nesterov": "steps follow g + beta (beta m + g): QG-DSGDm-N",
        "rounds": "how many rounds",
    },
    outputs={"models": f"after the rounds, {ROWS}", "momentum": f"m after the rounds, {ROWS}"},
    readings=[
        (
            "The change of a round with several local steps",
            "it is divided by lr and by the client's own number of steps",
            "the algorithm has one step",
        ),
    ],
    cases=[
        ("a first round", quasi_global(101, momentum=False)),
        ("three rounds", quasi_global(102, rounds=3, mu=0.5)),
        ("two steps on a star", quasi_global(103, graph=STAR, count=2)),
        ("Nesterov's step", quasi_global(104, nesterov=True)),
    ],
    function=qg_dsgdm,
)


def flat_for_one(seed):
    """The first client's model is zero and its batch has each input with both classes: its gradient is zero."""
    case = trains(seed, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=1)
    case["models"][0] = 0
    case["x"][0][0, 1], case["y"][0] = case["x"][0][0, 0], np.array([[0, 1]])
    return case


DFEDSAM = Method(
    name="DFedSAM and DFedSAM-MGS",
    configs=["dfedsam", "dfedsam --aggregation.steps 4"],
    paper="Shi et al., Improving the Model Consistency of Decentralized Federated Learning, ICML 2023, arXiv 2302.04083",
    equation="algorithm 1",
    does="A step follows the gradient at w + rho g / |g|, g the gradient of the same batch at w; then models are mixed by W, "
    "`steps` times.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        **UNDIRECTED,
        **ACTIVE,
        **RATE,
        "rho": "length of the step to the worst point nearby",
        "steps": "how often models are mixed: 1 is DFedSAM, more are DFedSAM-MGS",
    },
    outputs={"models": f"after the round, {ROWS}"},
    readings=[
        ("Is there momentum?", "none here", "algorithm 1 has plain steps"),
        ("What if the gradient is zero?", "the worst point is w itself", "there is no direction"),
    ],
    cases=[
        ("one step", trains(241, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=1)),
        (
            "three steps, two layers, a star",
            trains(242, layers=(3, 2, 2), count=3, graph=STAR, active=ALL, lr=0.25, rho=0.125, steps=1),
        ),
        ("four mixing steps", trains(243, graph=CYCLE, active=ALL, lr=0.25, rho=0.5, steps=4)),
        ("rho = 0 is D-SGD", trains(244, graph=CYCLE, active=ALL, lr=0.25, rho=0.0, steps=1)),
        (
            "two are down",
            trains(245, graph=CYCLE, active=np.array([True, True, False, True, False]), lr=0.25, rho=0.5, steps=1),
        ),
        ("a gradient of zero", flat_for_one(246)),
    ],
    function=dfedsam,
)
PUSH = Method(
    name="Push-sum",
    configs=["push_sum"],
    paper="Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019, arXiv 1811.10792",
    equation="algorithm 1",
    does="A client's numerator x = y z + (what training has changed of z) and number y are shared out equally among itself "
    "and its receivers; the new model is the sum of the x received over the sum of the y.",
    inputs={"models": f"z before the round, {ROWS}", "held": "y before the round, [m]", **TRAINED, **GRAPH},
    outputs={"held": "y after the round, [m]", "models": f"z after the round, {ROWS}"},
    readings=[("Which shares?", "1 / (1 + number of receivers)", "they need nothing but that number"), ORDER],
    cases=[
        ("a first round", {**rows(31, 4), "held": np.ones(4), "graph": ARCS}),
        ("numbers that are not 1", {**rows(32, 4), "held": np.array([0.5, 1.25, 1.5, 0.75]), "graph": ARCS}),
        ("no links", {**rows(33, 4), "held": np.array([0.5, 1.25, 1.5, 0.75]), "graph": np.zeros((4, 4), bool)}),
    ],
    function=push_sum,
)
for _, case in PUSH.cases:
    case["models"] = case.pop("before")
COUNTED = np.array([[0, 4, 1, 3, 0], [2, 0, 2, 2, 2], [5, 0, 0, 3, 0], [1, 3, 2, 0, 2], [0, 0, 4, 4, 0]])
PENS = Method(
    name="PENS",
    configs=["pens"],
    paper="Onoszko et al., Decentralized Federated Learning of Deep Neural Networks on Non-iid Data, arXiv 2107.08517",
    equation="algorithm 1",
    does="The last round of stage one: of the sampled clients, those with the lowest loss on the client's training data "
    "are averaged and counted. Peers of stage two are those chosen more often than expected.",
    inputs={
        **MODEL,
        **TRAINED,
        **OWN,
        "sampled": "whose models a client evaluates, [m, m]",
        "top": "how many of them it learns from",
        "stage_one": "rounds of stage one",
        "counts": "how often a client has chosen each other one before this round, [m, m]",
    },
    outputs={
        "losses": "[m, m], client by sender; null where it is not sampled",
        "chosen": "[m, m]",
        "counts": "after the round, [m, m]",
        "peers": "who will be peers in stage two, [m, m]",
        "models": f"after the round, {ROWS}",
    },
    readings=[
        (
            "The limit is 'the expected amount of times'",
            "top stage_one / (m - 1): under random choice among the others",
            "sources define it differently",
        ),
        ORDER,
    ],
    cases=[
        (
            "three are sampled",
            judged(41, sampled=np.roll(others(5) & ~CYCLE.T | CYCLE, 0), top=2, stage_one=8, counts=COUNTED),
        ),
        ("the best of two", judged(42, sampled=CYCLE, top=1, stage_one=8, counts=COUNTED)),
        ("more wanted than sampled", judged(43, sampled=CYCLE, top=3, stage_one=8, counts=COUNTED)),
    ],
    function=pens,
)
FEDERICO = Method(
    name="FedeRiCo, the sampler",
    configs=["federico"],
    paper="Sui et al., Find Your Friends: Personalized Federated Learning with the Right Collaborators, arXiv 2210.06597",
    equation="section 3: eq. for the weights, and the moving average of the losses",
    does="L is the moving average of the losses of others' models on the client's data; the fetched models and the own "
    "one are averaged by softmax(-L).",
    inputs={
        **MODEL,
        **TRAINED,
        **OWN,
        "fetched": "whose models a client fetches, [m, m]",
        "averages": "L before the round, [m, m]; null: not seen yet",
        "beta": "weight of this round's loss",
    },
    outputs={"averages": "L after the round, [m, m]", "weights": "[m, m]", "models": f"after the round, {ROWS}"},
    readings=[
        ("Where does the moving average start?", "at the first loss", "the paper does not say"),
        (
            "What is done with the weights?",
            "models are averaged, not predictions",
            "AFIND+ uses it as a sampler in this way; the whole method is another one",
        ),
    ],
    cases=[
        ("a first round", judged(51, fetched=CYCLE, averages=np.full((5, 5), np.nan), beta=0.6)),
        ("a later round", judged(52, fetched=CYCLE, averages=averages(52, 5, [(0, 1), (2, 2)]), beta=0.6)),
        ("the last loss alone", judged(53, fetched=others(5), averages=averages(53, 5, []), beta=1.0)),
        (
            "one fetches none",
            judged(54, fetched=CYCLE & (np.arange(5) > 0)[:, None], averages=averages(54, 5, []), beta=0.6),
        ),
    ],
    function=federico,
)
FEDERICO_EM = Method(
    name="FedeRiCo whole",
    configs=["federico_em"],
    paper=FEDERICO.paper,
    equation="algorithm 1: E-step and M-step",
    does="E-step: w_i = softmax(-L_i) over the fetched models and the own one, L the moving average of their losses on the "
    "client's data. M-step: model j moves by the sum over i of w_ij times the step of model j on the data of i.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        **DATA,
        "fetched": "whose models a client fetches and sends back steps of, [m, m]",
        "averages": "L before the round, [m, m]; null: not seen yet",
        "beta": "weight of this round's loss",
        **RATE,
    },
    outputs={"averages": "L after the round, [m, m]", "weights": "[m, m]", "models": f"after the round, {ROWS}"},
    readings=[
        ("Over which models do weights sum to 1?", "the fetched ones and the own one", "others are not improved"),
        ("Which losses?", "of the models before the round", "the E-step comes before the M-step"),
    ],
    cases=[
        ("a first round", trains(55, samples=4, fetched=CYCLE, averages=np.full((5, 5), np.nan), beta=0.6, lr=0.25)),
        (
            "a later round on a star",
            trains(56, fetched=STAR, averages=averages(56, 5, [(0, 1), (2, 2)]), beta=0.6, lr=0.5),
        ),
    ],
    function=federico_em,
)
PFEDGRAPH = Method(
    name="pFedGraph",
    configs=["pfedgraph"],
    paper="Ye et al., Personalized Federated Learning with Inferred Collaboration Graphs, ICML 2023",
    equation="algorithm 1, eq. 3 and 4",
    does="Local steps descend f(w) - lam <w, r> / ||w||, r fixed in the round. Weights of a client are the point of the "
    "simplex nearest to p + cos / (2 alpha), cos of what two clients have learned since the start; the next r is the "
    "sum of the directions w_j / ||w_j|| by these weights.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        **DATA,
        **GRAPH,
        "alpha": "weight of the shares p of samples",
        "lam": "lambda",
        **RATE,
        "initial": "the first model of all, [P]",
        "direction": f"r before the round, {ROWS}; zeros in the first one",
    },
    outputs={
        "weights": "[m, m]",
        "models": f"after the round, {ROWS}",
        "direction": f"r of the next round, {ROWS}",
    },
    readings=[
        ("The formula adds the cosine term", "it is subtracted", "the text wants models near their collaborators"),
        (
            "A cosine with the aggregated model, or with the sum of directions?",
            "a product with the sum of directions, whose length counts",
            "the authors' code",
        ),
    ],
    cases=[
        ("a first round", of_pfedgraph(61, others(5), first=True)),
        ("clients of different sizes", of_pfedgraph(62, others(5), count=[1, 3, 2, 1, 2])),
        ("a cycle, alpha small", of_pfedgraph(63, CYCLE, alpha=0.25)),
        ("no neighbours", of_pfedgraph(64, np.zeros((5, 5), bool))),
    ],
    function=pfedgraph,
)


def masked(seed, graph=CYCLE, layers=(4, 3, 3), kept=(6, 5), round=2, rounds=8):
    case = trains(
        seed, layers=layers, samples=4, graph=graph, lr=0.5, density=0.5, prune=0.5, round=round, rounds=rounds
    )
    numbers, masks = Numbers(seed + 50), np.ones_like(case["models"])
    for i in range(len(masks)):
        for at, number in zip(weights_in(layers), kept, strict=True):
            masks[i, numbers.random.sample(at, len(at) - number)] = 0
    return {**case, "masks": masks}


def with_density(layers, models, masks, x, y, graph, lr, density, prune, round, rounds):
    return dispfl(layers, models, masks, x, y, graph, lr, prune, round, rounds)


DISPFL = Method(
    name="Dis-PFL",
    configs=["dispfl"],
    paper="Dai et al., DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training, ICML 2022, arXiv 2206.00187",
    equation="algorithms 1 and 2",
    does="A step under the mask; of each layer's weights the share prune / 2 (1 + cos(pi t / T)) leaves the mask, the "
    "smallest ones, and as many come in, where the dense gradient is largest; models are averaged entry by entry over "
    "those whose masks hold the entry, and the client's own new mask is applied.",
    inputs={
        **MODEL,
        "models": f"before the round, {ROWS}",
        "masks": f"before the round, zeros and ones, {ROWS}; biases have none, so ones",
        **DATA,
        **GRAPH,
        **RATE,
        "density": "share of the weights that masks keep, layer by layer by the Erdos-Renyi kernel; the masks have it",
        "prune": "alpha",
        "round": "t, from 0",
        "rounds": "T",
    },
    outputs={"masks": f"after the round, {ROWS}", "models": f"after the round, {ROWS}"},
    readings=[
        (
            "Which masks does the average use, those before or after the search?",
            "those that models were trained with; the client's own new mask is applied to the result",
            "an entry that has just come in has no trained weight at its owner",
        ),
        ("May what has just left come back?", "yes", "a full layer stays full"),
        ("How many weights leave?", "rounded up", "the paper does not say"),
        (
            "At which model is the dense gradient?",
            "at the trained one, on one further batch",
            "algorithm 2 follows the training",
        ),
        ORDER,
    ],
    cases=[
        ("a round on a cycle", masked(111)),
        ("an early round", masked(112, round=1, rounds=100)),
        ("the last round exchanges little", masked(113, graph=STAR, round=7)),
        ("no neighbours", masked(114, graph=np.zeros((5, 5), bool))),
    ],
    function=with_density,
)
PACFL = Method(
    name="PACFL",
    configs=["pacfl"],
    paper="Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles Between Client Data Subspaces, AAAI 2023, arXiv 2209.10526",
    equation="algorithm 1, eq. 2",
    does="A client's signature are the first left singular vectors of the inputs of each of its classes; distances are "
    "the smallest principal angles; clusters are joined (average linkage) up to a threshold, and average their models.",
    inputs={
        **TRAINED,
        **OWN,
        "vectors": "singular vectors of each class",
        "threshold": "largest distance at which clusters are joined, in degrees",
    },
    outputs={
        "degrees": "distances, [m, m]",
        "clusters": "of each client, [m], numbered by their first clients",
        "models": f"after averaging within clusters by numbers of samples, {ROWS}",
    },
    readings=[
        (
            "Vectors of several classes are not orthogonal to each other",
            "the angle is between what they span together",
            "a principal angle needs a basis",
        ),
    ],
    cases=[
        ("two kinds of clients", subspaces(71, 15.0)),
        ("a threshold of 0: clusters of one", subspaces(72, 0.0)),
        ("a threshold that joins all", subspaces(73, 90.0)),
        ("two vectors of each class", subspaces(74, 50.0, vectors=2, noise=1.0, width=14)),
    ],
    function=pacfl,
)
KNN = Method(
    name="kNN-Per",
    configs=["knn_per"],
    paper="Marfoq, Neglia, Kameni and Vidal, Personalized Federated Learning through Local Memorization, ICML 2022, arXiv 2111.09360",
    equation="section 3, eq. 6 to 8",
    does="The k nearest stored features (inputs of the last layer) vote for their classes by exp(-d^2 / (D scale)), D the "
    "number of features; p = weight votes + (1 - weight) softmax.",
    inputs={
        **MODEL,
        "model": "of the client, [P]",
        "x": "its training inputs, [samples, inputs]",
        "y": "their classes, [samples]",
        "queries": "inputs to be classified, [queries, inputs]",
        "k": "how many vote",
        "scale": "of the distances",
        "weight": "of the votes",
    },
    outputs={"probabilities": "[queries, classes]"},
    readings=[
        ("exp(-d) in the paper", "exp(-d^2 / (D scale))", "the authors' code; it does not depend on D"),
        ("k above the number of samples", "all vote", "the paper does not say"),
        ("No samples", "the network alone decides", "the paper does not say"),
    ],
    cases=[
        ("three of six vote", remembered(81)),
        ("k above the samples", remembered(82, k=10)),
        ("the nearest alone, votes alone", remembered(83, k=1, weight=1.0)),
        ("far features", remembered(84, scale=2.0**-10, weight=0.75)),
    ],
    function=knn_per,
)
