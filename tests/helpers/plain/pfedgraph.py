"""pFedGraph."""

import numpy as np

from plain.book import Method, Numbers, others
from plain.model import MODEL, cosine, grad
from plain.neighbours import CYCLE, DATA, GRAPH, RATE, ROWS, trains


def on_simplex(point):
    """The nearest point of the simplex, by sorting (Duchi et al. 2008)."""
    ordered = np.sort(point)[::-1]
    sums = np.cumsum(ordered) - 1
    last = max(k for k in range(len(point)) if ordered[k] - sums[k] / (k + 1) > 0)
    return np.maximum(point - sums[last] / (last + 1), 0)


def pfedgraph(layers, initial, models, direction, x, y, graph, alpha, alike, lam, sign, lr):
    m, trained = len(models), models.copy()
    for i in range(m):
        for bx, by in zip(x[i], y[i], strict=True):
            w, r = trained[i], direction[i]
            length = np.linalg.norm(w)
            pull = r / length - (w @ r) * w / length**3
            trained[i] = w - lr * (grad(w, bx, by, layers) + (lam if sign == "printed" else -lam) * pull)
    samples = np.array([part.shape[0] * part.shape[1] for part in x])
    weights, moved = np.zeros((m, m)), trained - initial
    for i in range(m):
        mine = [j for j in range(m) if graph[i, j] or i == j]
        shares = samples[mine] / samples[mine].sum()
        cosines = [1.0 if i == j else cosine(moved[i], moved[j]) for j in mine]
        counted = [1.0 if number > alike else number for number in cosines]
        weights[i, mine] = on_simplex(shares + np.array(counted) / (2 * alpha))
    unit = trained / np.linalg.norm(trained, axis=1, keepdims=True)
    return {"weights": weights, "models": weights @ trained, "direction": weights @ unit}


def of_pfedgraph(seed, graph, count=1, first=False, **more):
    case = trains(seed, count=count, **{"graph": graph, "alpha": 0.8, "lr": 0.25, **more})
    case = {"alike": 1.0, "lam": 0.25, "sign": "towards", **case}
    initial, direction = Numbers(seed + 50).floats(8), Numbers(seed + 60).floats(5, 8)
    return {**case, "initial": initial, "direction": direction * (not first)}


def known_cosines(alike, *cosines):
    """Clients that have learned, from zeros, something of these cosines with the first one, in a plane."""
    case = of_pfedgraph(65, others(len(cosines)), m=len(cosines), lr=0.0, alike=alike)
    case["initial"], case["direction"] = np.zeros(8), np.zeros((len(cosines), 8))
    case["models"] = np.zeros((len(cosines), 8))
    case["models"][:, 0], case["models"][:, 1] = cosines, np.sqrt(1 - np.square(cosines))
    return case


def one_at_the_start():
    case = of_pfedgraph(66, others(5), lr=0.0)
    case["models"][2] = case["initial"]
    return case


METHOD = Method(
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
        "alike": "cosines above it count as 1; 1 leaves them as they are",
        "lam": "lambda",
        "sign": "towards: the term is subtracted, as above; printed: it is added",
        **RATE,
        "initial": "the first model of all, [P]",
        "direction": f"r before the round, {ROWS}; zeros in the first one",
    },
    outputs={"weights": "[m, m]", "models": f"after the round, {ROWS}", "direction": f"r of the next round, {ROWS}"},
    readings=[
        (
            "The formula and the authors' code add the cosine term",
            "it is subtracted, unless sign is printed",
            "the text wants models near their collaborators",
        ),
        ("Cosines near 1", "as they are, unless alike is below 1", "the authors' code counts those above 0.9 as 1"),
        ("What is the cosine of a vector of zeros?", "1 with itself, 0 with others", "a client is like itself"),
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
        ("the term as printed", of_pfedgraph(62, others(5), sign="printed")),
        ("cosines 1, 0.92, 0.8 and 0.91 with the first client, alike 0.9", known_cosines(0.9, 1.0, 0.92, 0.8, 0.91)),
        ("the same as they are", known_cosines(1.0, 1.0, 0.92, 0.8, 0.91)),
        ("one client has learned nothing", one_at_the_start()),
    ],
    function=pfedgraph,
)
