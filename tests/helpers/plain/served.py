"""Local training and a server: FedAvg, FedProx, Ditto, MOON, APFL, Per-FedAvg, FedRep, FedPer, IFCA."""

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, columns, forward, grad, loss, size, unpacked


def batches(x, y, epochs=1):
    return [batch for _ in range(epochs) for batch in zip(x, y, strict=True)]


def averaged(rows, x):
    """By numbers of samples."""
    counts = np.array([len(part) * part.shape[1] for part in x])
    return counts / counts.sum() @ np.array(rows)


def fedavg(layers, model, x, y, active, lr, epochs):
    rows, mine = [], [i for i in range(len(x)) if active[i]]
    for i in mine:
        w = model.copy()
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        rows.append(w)
    return {"model": averaged(rows, [x[i] for i in mine]) if mine else model}


def fedprox(layers, model, x, y, lr, mu):
    rows = []
    for i in range(len(x)):
        w = model.copy()
        for bx, by in batches(x[i], y[i]):
            w = w - lr * (grad(w, bx, by, layers) + mu * (w - model))
        rows.append(w)
    return {"model": averaged(rows, x)}


def ditto(layers, model, personal, x, y, lr, lam, rounds):
    personal = personal.copy()
    for _ in range(rounds):
        rows = []
        for i in range(len(x)):
            w, v = model.copy(), personal[i]
            for bx, by in batches(x[i], y[i]):
                w = w - lr * grad(w, bx, by, layers)
                v = v - lr * (grad(v, bx, by, layers) + lam * (v - model))
            rows.append(w)
            personal[i] = v
        model = averaged(rows, x)
    return {"model": model, "personal": personal}


def contrast(w, x, layers, near, far, tau):
    """The gradient of the mean of -log(e^(cos(z, near) / tau) / (e^(cos(z, near) / tau) + e^(cos(z, far) / tau)))."""
    inputs, _ = forward(w, x, layers)
    z = inputs[-1]

    def cosine_and_slope(other):
        lengths = np.linalg.norm(z, axis=1, keepdims=True), np.linalg.norm(other, axis=1, keepdims=True)
        cos = (z * other).sum(1, keepdims=True) / lengths[0] / lengths[1]
        return cos, other / lengths[0] / lengths[1] - cos * z / lengths[0] ** 2

    (to_near, near_slope), (to_far, far_slope) = cosine_and_slope(near), cosine_and_slope(far)
    share = 1 / (1 + np.exp((to_near - to_far) / tau))
    error = share / tau * (far_slope - near_slope) / len(x)
    parts = [np.zeros(len(columns(layers, len(layers) - 2)))]
    for place in reversed(range(len(layers) - 2)):
        error = error * (1 - inputs[place + 1] ** 2)
        parts = [(error.T @ inputs[place]).ravel(), error.sum(0), *parts]
        error = error @ unpacked(w, layers)[place][0]
    return np.concatenate(parts)


def moon(layers, model, previous, x, y, active, lr, mu, tau, rounds):
    previous, mine = previous.copy(), [i for i in range(len(x)) if active[i]]
    for _ in range(rounds):
        rows = []
        for i in mine:
            w = model.copy()
            for bx, by in batches(x[i], y[i]):
                near, far = forward(model, bx, layers)[0][-1], forward(previous[i], bx, layers)[0][-1]
                w = w - lr * (grad(w, bx, by, layers) + mu * contrast(w, bx, layers, near, far, tau))
            rows.append(w)
        previous[mine] = rows
        model = averaged(rows, [x[i] for i in mine])
    return {"model": model, "previous": previous}


def apfl(layers, model, local, alpha, adapt, x, y, lr, rounds):
    local, alpha = local.copy(), alpha.copy()
    for _ in range(rounds):
        rows = []
        for i in range(len(x)):
            w, v = model.copy(), local[i]
            for number, (bx, by) in enumerate(batches(x[i], y[i])):
                mixture = alpha[i] * v + (1 - alpha[i]) * w
                of_mixture, of_w = grad(mixture, bx, by, layers), grad(w, bx, by, layers)
                slope = float((v - w) @ of_mixture)
                w, v = w - lr * of_w, v - lr * alpha[i] * of_mixture
                if adapt and number == 0:
                    alpha[i] = min(1.0, max(0.0, alpha[i] - lr * slope))
            rows.append(w)
            local[i] = v
        model = averaged(rows, x)
    return {
        "model": model,
        "local": local,
        "alpha": alpha,
        "mixture": alpha[:, None] * local + (1 - alpha[:, None]) * model,
    }


def hessian_times(w, v, x, y, layers):
    """By a complex step, exact to the last digits."""
    return grad(w + 1e-30j * v, x, y, layers).imag / 1e-30


def per_fedavg(layers, model, x, y, alpha, beta, order):
    rows = []
    for i in range(len(x)):
        w, queue = model.copy(), batches(x[i], y[i])
        while queue:
            first, second = queue.pop(0), queue.pop(0)
            g = grad(w - alpha * grad(w, *first, layers), *second, layers)
            if order == "hessian":
                g = g - alpha * hessian_times(w, g, *queue.pop(0), layers)
            w = w - beta * g
        rows.append(w)
    return {"model": averaged(rows, x)}


def fedrep(layers, body, heads, x, y, lr, head_epochs, body_epochs):
    heads, at = heads.copy(), columns(layers, len(layers) - 2)
    head = np.isin(np.arange(size(layers)), at)
    rows = []
    for i in range(len(x)):
        w = np.concatenate([body, heads[i]])
        for bx, by in batches(x[i], y[i], head_epochs):
            w = w - lr * head * grad(w, bx, by, layers)
        for bx, by in batches(x[i], y[i], body_epochs):
            w = w - lr * ~head * grad(w, bx, by, layers)
        heads[i] = w[head]
        rows.append(w[~head])
    return {"body": averaged(rows, x), "heads": heads}


def fedper(layers, body, heads, x, y, lr, epochs):
    heads, rows = heads.copy(), []
    for i in range(len(x)):
        w = np.concatenate([body, heads[i]])
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        heads[i] = w[len(body) :]
        rows.append(w[: len(body)])
    return {"body": averaged(rows, x), "heads": heads}


def ifca(layers, models, x, y, lr, epochs):
    flat = [(a.reshape(-1, a.shape[-1]), b.ravel()) for a, b in zip(x, y, strict=True)]
    losses = np.array([[loss(model, *own, layers) for model in models] for own in flat])
    chosen, new = losses.argmin(1), models.copy()
    rows = []
    for i in range(len(x)):
        w = models[chosen[i]].copy()
        for bx, by in batches(x[i], y[i], epochs):
            w = w - lr * grad(w, bx, by, layers)
        rows.append(w)
    for k in range(len(models)):
        mine = [rows[i] for i in range(len(x)) if chosen[i] == k]
        if mine:
            new[k] = np.mean(mine, 0)
    return {"losses": losses, "chosen": chosen, "models": new}


# --- examples ---------------------------------------------------------------------------------------------------------
def data(numbers, m, count, layers, samples=2):
    """[count, samples, inputs] of each client; `count` may be a list."""
    counts = [count] * m if isinstance(count, int) else count
    x = [numbers.floats(c, samples, layers[0], size=2) for c in counts]
    return {"x": x, "y": [numbers.classes(c, samples, number=layers[-1]) for c in counts]}


def made(seed, m=3, count=2, layers=(3, 2), lr=0.25, **more):
    numbers = Numbers(seed)
    start = {"layers": list(layers), "model": numbers.floats(size(layers))}
    return {**start, **data(numbers, m, count, layers), "lr": lr, **more}


def own_models(seed, m, layers):
    return Numbers(seed + 100).floats(m, size(layers))


def of_ditto(seed, m=3, lam=0.75, rounds=1, layers=(3, 2), **more):
    return {
        **made(seed, m, layers=layers, **more),
        "personal": own_models(seed, m, layers),
        "lam": lam,
        "rounds": rounds,
    }


def of_moon(seed, m=3, mu=1.0, tau=0.5, rounds=1, first=False, active=None, **more):
    case = made(seed, m, layers=(3, 3, 2), **more)
    previous = np.tile(case["model"], (m, 1)) if first else own_models(seed, m, (3, 3, 2))
    active = np.ones(m, bool) if active is None else np.array(active)
    return {**case, "previous": previous, "active": active, "mu": mu, "tau": tau, "rounds": rounds}


def of_apfl(seed, alpha, adapt=False, rounds=1, layers=(3, 2), **more):
    m = len(alpha)
    case = {**made(seed, m, layers=layers, **more), "local": own_models(seed, m, layers)}
    return {**case, "alpha": np.array(alpha), "adapt": adapt, "rounds": rounds}


def of_maml(seed, m=3, count=4, order="first", alpha=0.125, beta=0.25, layers=(3, 2)):
    case = made(seed, m, count, layers)
    del case["lr"]
    return {**case, "alpha": alpha, "beta": beta, "order": order}


def parted(seed, m=3, count=1, layers=(3, 2, 2), lr=0.25, **more):
    case = made(seed, m, count, layers, lr)
    head = columns(layers, len(layers) - 2)
    model = case.pop("model")
    return {**case, "body": model[: head[0]], "heads": own_models(seed, m, layers)[:, head], **more}


def clustered(seed, m=4, c=2, layers=(3, 2), equal=False, epochs=1):
    case = made(seed, m, 1, layers, epochs=epochs)
    del case["model"]
    models = Numbers(seed + 100).floats(c, size(layers), size=2)
    if equal:
        models[1] = models[0]
    return {**case, "models": models}


DATA = {
    "x": "training data of each client, [batches, samples, inputs]; batches are taken in this order, in each epoch again",
    "y": "their classes, [batches, samples]",
}
SERVER = {**MODEL, "model": "the server's before the round, [P]"}
RATE = {"lr": "learning rate of plain SGD; one step on each batch"}
EPOCHS = {"epochs": "how often a client takes its batches"}
ROUNDS = {"rounds": "how many rounds"}
AFTER = {"model": "the server's after the round, [P]: the mean by numbers of samples"}
NO_MOMENTUM = ("Does momentum last over rounds?", "there is none here", "the algorithm is written with plain steps")
FEDAVG = Method(
    name="FedAvg",
    configs=["fedavg", "fedavg --selection.k 5", "fedavg_ft"],
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, arXiv 1602.05629",
    equation="algorithm 1",
    does="The clients that take part train the server's model; the server averages what they return by numbers of "
    "samples. The rounds of FedAvg-FT are the same.",
    inputs={**SERVER, **DATA, "active": "who takes part, [m]: those that the server has sampled", **RATE, **EPOCHS},
    outputs=AFTER,
    readings=[
        (
            "By which weights are models averaged if a part of the clients takes part?",
            "n_k over the samples of those that take part",
            "the last version of the paper says m_t, the first one n; only the former has weights that sum to 1",
        ),
        ("What if no client takes part?", "the model stays", "an average of nothing is not defined"),
    ],
    cases=[
        ("one step of one client", made(1, m=1, count=1, active=[True], epochs=1)),
        ("a round of clients of different sizes", made(2, count=[1, 3, 2], active=[True] * 3, epochs=1)),
        ("some take part", made(3, m=4, count=[2, 1, 3, 1], active=[True, False, True, False], epochs=1)),
        ("none takes part", made(4, active=[False] * 3, epochs=1)),
        ("three epochs, two layers", made(5, count=1, layers=(3, 2, 3), active=[True] * 3, epochs=3)),
    ],
    function=fedavg,
)
FEDPROX = Method(
    name="FedProx",
    configs=[],
    paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127",
    equation="eq. 2, algorithm 2",
    does="Clients descend f(w) + mu / 2 ||w - w_t||^2, w_t the server's model at the start of the round.",
    inputs={**SERVER, **DATA, **RATE, "mu": "weight of the term"},
    outputs=AFTER,
    readings=[
        (
            "How is the sum weighted?",
            "clients are averaged by numbers of samples",
            "the paper samples clients by them and averages equally, which has the same mean",
        ),
    ],
    cases=[
        ("two steps of one client", made(11, m=1, mu=0.5)),
        ("a round", made(12, count=[1, 3, 2], mu=0.5)),
        ("mu = 0 is FedAvg", made(12, count=[1, 3, 2], mu=0.0)),
        ("two layers", made(13, count=3, layers=(2, 3, 2), mu=2.0)),
    ],
    function=fedprox,
)
DITTO = Method(
    name="Ditto",
    configs=["ditto"],
    paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv 2012.04221",
    equation="algorithm 1, eq. 2",
    does="w is trained and averaged as in FedAvg; on each batch the personal model v takes the step of its own loss plus "
    "lam / 2 ||v - w_t||^2, w_t the server's model at the start of the round.",
    inputs={
        **SERVER,
        "personal": "v of each client before the round, [m, P]",
        **DATA,
        **RATE,
        "lam": "lambda",
        **ROUNDS,
    },
    outputs={**AFTER, "personal": "v after the round, [m, P]"},
    readings=[
        ("How many steps has v?", "as many as w, on the same batches", "algorithm 1 leaves both numbers open"),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_ditto(21, m=1, count=1)),
        ("a round", of_ditto(22, count=[1, 3, 2])),
        ("two rounds", of_ditto(23, count=1, rounds=2)),
        ("lambda = 0: v trains alone", of_ditto(24, lam=0.0)),
        ("two layers", of_ditto(25, layers=(3, 2, 2))),
    ],
    function=ditto,
)
MOON = Method(
    name="MOON",
    configs=["moon"],
    paper="Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257",
    equation="eq. 3, algorithm 1",
    does="The loss of a batch has mu times the mean of -log(e^(cos(z, z_near) / tau) / (e^(cos(z, z_near) / tau) + "
    "e^(cos(z, z_far) / tau))) added, z the features by the model in training, z_near by the server's, z_far by the model "
    "that the client trained before.",
    inputs={
        **SERVER,
        "previous": "the model that each client trained when it last took part, [m, P]",
        **DATA,
        "active": "who takes part, [m], in all rounds",
        **RATE,
        "mu": "weight of the contrast",
        "tau": "temperature",
        **ROUNDS,
    },
    outputs={**AFTER, "previous": "the model that each client trained last, [m, P]"},
    readings=[
        (
            "Which features?",
            "the inputs of the last layer, after tanh",
            "the paper has a projection head of two layers before its last layer; the cases' networks have none",
        ),
        (
            "What is the earlier model before the first training?",
            "the first model, so that near and far are alike and the contrast has no gradient",
            "the authors' code leaves the earlier model out in the first round, which has the same gradient",
        ),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_moon(51, m=1, count=1)),
        ("a round", of_moon(52, count=[1, 3, 2])),
        ("the first round is FedAvg's", of_moon(53, count=1, first=True)),
        ("two rounds", of_moon(54, count=1, rounds=2)),
        ("one does not take part", of_moon(55, active=[True, False, True], mu=5.0)),
        ("mu = 0 is FedAvg", of_moon(56, mu=0.0)),
        ("a low temperature", of_moon(57, tau=0.0625, lr=0.0625)),
    ],
    function=moon,
)
APFL = Method(
    name="APFL",
    configs=["apfl"],
    paper="Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, arXiv 2003.13461",
    equation="algorithm 1; eq. 11 for alpha",
    does="w descends its own loss and is averaged; the local model v descends the loss at the mixture alpha v + (1 - "
    "alpha) w, so that its gradient has the factor alpha. Clients are evaluated by the mixture.",
    inputs={
        **SERVER,
        "local": "v of each client before the round, [m, P]",
        "alpha": "of each client, [m]",
        "adapt": "whether alpha moves: on the first batch of a round, by the learning rate",
        **DATA,
        **RATE,
        **ROUNDS,
    },
    outputs={
        **AFTER,
        "local": "v after the round, [m, P]",
        "alpha": "after the round, [m]",
        "mixture": "alpha v + (1 - alpha) w after the round, w the new average, [m, P]",
    },
    readings=[
        (
            "Which gradients does a step use, if w has moved already?",
            "all are taken where the step began, with the former alpha",
            "the algorithm's right-hand sides are of one time",
        ),
        (
            "When does alpha move (eq. 11)?",
            "on the first batch of a round, by the learning rate, and it is kept within 0 and 1",
            "there w is the model that was exchanged; the authors' code moves it once a round, too",
        ),
        (
            "Is the mixture of a client's own w or of the average?",
            "of the average",
            "a client has it when it is evaluated",
        ),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step of one client", of_apfl(31, [0.25], count=1)),
        ("a round", of_apfl(32, [0.25, 0.5, 0.75], count=[1, 3, 2])),
        ("two rounds", of_apfl(33, [0.25, 0.5, 0.75], count=1, rounds=2)),
        ("alpha = 0 and 1", of_apfl(34, [0.0, 1.0])),
        ("alpha moves", of_apfl(35, [0.25, 0.5, 0.75], adapt=True)),
        ("alpha moves to its bounds", of_apfl(36, [0.0, 1.0, 0.03125, 0.96875], adapt=True, count=1, lr=1.0)),
        ("two layers", of_apfl(37, [0.25, 0.5], layers=(3, 2, 2))),
    ],
    function=apfl,
)
PER_FEDAVG = Method(
    name="Per-FedAvg",
    configs=["per_fedavg"],
    paper="Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, arXiv 2002.07948",
    equation="algorithm 1, eq. 5 and 7; section 5.1 for the first-order version",
    does="A step takes batches D, D' and D'': w = w - beta (I - alpha Hessian(w; D'')) grad(w - alpha grad(w; D); D'). "
    "The first-order version leaves the Hessian, and D'', out.",
    inputs={
        **SERVER,
        "x": "training data of each client, [batches, samples, inputs], taken in this order: D, D' (and D''), D, ...",
        "y": DATA["y"],
        "alpha": "length of the inner step",
        "beta": "length of the outer step",
        "order": "first, or hessian",
    },
    outputs=AFTER,
    readings=[
        (
            "How many batches has a step of the first-order version?",
            "two",
            "nothing is left for which it would need a third",
        ),
        (
            "Does the round end with the step of length alpha by which clients are tested?",
            "no, it belongs to the evaluation",
            "a step before averaging would be averaged away",
        ),
    ],
    cases=[
        ("one step of one client", of_maml(41, m=1, count=2)),
        ("a round", of_maml(42, count=[2, 6, 4])),
        ("with the Hessian", of_maml(43, count=[3, 6], m=2, order="hessian")),
        ("two layers, with the Hessian", of_maml(44, m=2, count=6, order="hessian", layers=(2, 3, 2))),
        ("alpha = 0 is descent on every second batch", of_maml(45, alpha=0.0)),
    ],
    function=per_fedavg,
)
PARTS = {
    **MODEL,
    "body": "the server's: all layers but the last one",
    "heads": "the last layer of each client, [m, numbers of the layer]",
    **DATA,
    **RATE,
}
AFTER_PARTS = {"body": "the server's after the round", "heads": "the heads after the round"}
FEDREP = Method(
    name="FedRep",
    configs=["fedrep"],
    paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv 2102.07078",
    equation="algorithm 1",
    does="A client trains its head with the body of the server frozen, then the body with the new head frozen; bodies "
    "are averaged, heads stay.",
    inputs={**PARTS, "head_epochs": "epochs of the head", "body_epochs": "epochs of the body"},
    outputs=AFTER_PARTS,
    readings=[
        ("How are bodies averaged?", "by numbers of samples", "the paper has clients of equal sizes; so does FedAvg"),
        NO_MOMENTUM,
    ],
    cases=[
        ("one step each of one client", parted(51, m=1, head_epochs=1, body_epochs=1)),
        ("a round", parted(52, head_epochs=3, body_epochs=1)),
        ("the body twice, three layers", parted(53, layers=(2, 3, 2, 2), head_epochs=2, body_epochs=2)),
        ("no epoch of the head", parted(54, head_epochs=0, body_epochs=1)),
    ],
    function=fedrep,
)
FEDPER = Method(
    name="FedPer",
    configs=[],
    paper="Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818",
    equation="algorithms 1 and 2",
    does="A client trains head and body together; bodies are averaged, heads stay.",
    inputs={**PARTS, **EPOCHS},
    outputs=AFTER_PARTS,
    readings=[],
    cases=[
        ("one step of one client", parted(61, m=1, epochs=1)),
        ("a round", parted(62, count=[1, 2, 3], epochs=1)),
        ("three layers, two epochs", parted(63, layers=(2, 3, 2, 2), epochs=2)),
    ],
    function=fedper,
)
IFCA = Method(
    name="IFCA",
    configs=["ifca"],
    paper="Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, arXiv 2006.04088",
    equation="algorithm 1, option II (model averaging)",
    does="Each client trains the cluster model with the lowest loss on its training data; each cluster model becomes the "
    "mean of those that were trained from it.",
    inputs={**MODEL, "models": "of the clusters, [c, P]", **DATA, **RATE, **EPOCHS},
    outputs={
        "losses": "of each cluster's model on each client's data, [m, c]",
        "chosen": "the cluster of each client, [m]",
        "models": "of the clusters after the round, [c, P]",
    },
    readings=[
        ("What if no client chooses a cluster?", "its model stays", "an average of nothing is not defined"),
        ("Two models have the same loss", "the first one is chosen", "the paper takes the argmin"),
        ("Do clients count by their samples?", "no, equally", "line 13 of the algorithm"),
    ],
    cases=[
        ("a round", clustered(71)),
        ("three clusters, two epochs", clustered(72, m=6, c=3, epochs=2)),
        ("equal models: all choose the first", clustered(73, equal=True)),
        ("one client, one cluster", clustered(74, m=1, c=1)),
    ],
    function=ifca,
)
