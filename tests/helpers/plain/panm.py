"""PANM (arXiv 2203.12285)."""

import math

import numpy as np

from plain.book import Method, Numbers
from plain.model import MODEL, cosine, loss, size


def panm(layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers):
    return a_round(
        layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers, False
    )


def panm_literal(layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers):
    return a_round(
        layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers, True
    )


def a_round(layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers, literal):
    m = len(before)
    similarity, new, models = np.full((m, m), np.nan), np.zeros((m, m), bool), trained.copy()
    for i in range(m):
        compared = [j for j in range(m) if sampled[i, j] or strangers[i, j]]
        for j in compared:
            if metric == "loss":
                similarity[i, j] = 1 / max(loss(trained[j], x[i], y[i], layers), 1e-12)
            else:
                now = cosine(trained[i] - before[i], trained[j] - before[j])
                ever = cosine(trained[i] - initial[i], trained[j] - initial[j])
                similarity[i, j] = alpha * now + (1 - alpha) * ever
        if stage == "initialisation":
            listed = sorted(compared, key=lambda j: (-similarity[i, j], j))[:k]
        else:
            matching = "literal" if literal else "oriented"
            own = same_cluster(
                {j: similarity[i, j] for j in compared}, {j for j in compared if sampled[i, j]}, matching
            )
            listed = {j for j in range(m) if neighbours[i, j] and not sampled[i, j]} | own
            listed = sorted(listed or {j for j in range(m) if neighbours[i, j]})
            assert len(listed) <= k
        new[i, listed] = True
        models[i] = np.mean(trained[[*listed, i]], 0)
    return {"similarity": similarity, "neighbours": new, "models": models}


def moments(values):
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)


def same_cluster(similarity, first, matching):
    """Hard expectation maximisation of two Gaussians, from the labels neighbour and stranger; None: no end in 100 steps."""
    if not similarity:
        return set()
    values = list(similarity.values())
    everything = set(similarity)
    if max(values) - min(values) <= 1e-9 * max(map(abs, values)):
        return everything  # one cluster only
    floor = 0.01 * moments(values)[1]
    first = everything - first if matching == "literal" else set(first)
    for _ in range(100):
        second = everything - first
        if not first or not second:
            return everything
        scores = []
        for component in (first, second):
            mean, variance = moments([similarity[j] for j in component])
            variance, share = max(variance, floor), len(component) / len(values)
            scores.append(
                {
                    j: math.log(share) - math.log(variance) / 2 - (s - mean) ** 2 / (2 * variance)
                    for j, s in similarity.items()
                }
            )
        labels = {j for j in everything if scores[0][j] >= scores[1][j]}
        if labels == first:
            break
        first = labels
    else:
        return None
    second = everything - first
    if not first or not second:
        return everything
    means = [moments([similarity[j] for j in component])[0] for component in (first, second)]
    return first if matching != "oriented" or means[0] >= means[1] else second


def made(
    seed, stage="initialisation", metric="grad", alpha=0.5, k=2, m=6, neighbours=None, sampled=None, strangers=None
):
    numbers, layers = Numbers(seed), [3, 2]
    p = size(layers)
    initial = np.tile(numbers.floats(p), (m, 1))
    before = initial + numbers.floats(m, p, size=0.5)
    kinds = numbers.floats(2, p, size=2)[np.arange(m) % 2]
    empty = np.zeros((m, m), bool)
    neighbours = empty if neighbours is None else matrix(neighbours, m)
    return {
        "layers": layers,
        "stage": stage,
        "metric": metric,
        "alpha": alpha,
        "k": k,
        "before": before,
        "initial": initial,
        "trained": before + kinds + numbers.floats(m, p, size=0.5),
        "x": numbers.floats(m, 4, 3, size=2),
        "y": numbers.classes(m, 4),
        "neighbours": neighbours,
        "sampled": neighbours if sampled is None else matrix(sampled, m),
        "strangers": empty if strangers is None else matrix(strangers, m),
    }


def matrix(rows, m):
    """Lists of ids as true entries."""
    found = np.zeros((m, m), bool)
    for i, row in enumerate(rows):
        found[i, row] = True
    return found


RING = [[(i + 1) % 6, (i + 2) % 6] for i in range(6)]
AFTER = [[(i + 3) % 6, (i + 4) % 6] for i in range(6)]
LAST = [[(i + 5) % 6] for i in range(6)]
MATCHING = {"stage": "matching", "k": 9, "neighbours": RING, "strangers": AFTER}


def equal_similarities():
    case = made(9, **MATCHING)
    case["trained"] = case["before"] + case["trained"][0] - case["before"][0]
    case["initial"], case["before"] = case["before"].copy(), case["before"]
    return case


ROWS = "[m, P], a row for each client"
INPUTS = {
    **MODEL,
    "stage": "initialisation (CNI, algorithm 2) or matching (HNM, algorithm 3)",
    "metric": "grad (eq. 4 to 6) or loss (eq. 3)",
    "alpha": "of eq. 6",
    "k": "neighbours that a client keeps in the initialisation, and averages; in the matchings no list is longer",
    "before": f"models before the round, {ROWS}",
    "initial": f"the first models of the run, {ROWS}",
    "trained": f"models after local training, {ROWS}",
    "x": "training inputs, [m, samples, inputs]",
    "y": "their classes, [m, samples]",
    "neighbours": "N before the round, [m, m]",
    "sampled": "which of them are compared, [m, m]; in the initialisation all",
    "strangers": "others that are drawn and compared, [m, m]",
}
OUTPUTS = {
    "similarity": "s_ij of those compared, [m, m]; null elsewhere",
    "neighbours": "N after the round, [m, m]",
    "models": f"after averaging one's own and all of the new N equally, {ROWS}",
}
OPEN = [
    (
        "A component of one client has variance 0 (M-step, eq. 17)",
        "a variance is at least a hundredth of that of all similarities in the matching",
        "the printed density is infinite",
    ),
    (
        "A component becomes empty, or all similarities are equal",
        "there is one cluster: all that were compared are of it",
        "an empty component has no mean",
    ),
    ("A client is as likely in both components", "it goes to the first one", "eq. 16 does not say"),
    ("The new list is empty (eq. 18)", "the list stays", "the client would be alone until the next matching"),
    (
        "Which model is w^(t-1) in eq. 4?",
        "the client's model at the start of the round, after mixing",
        "local training started from it",
    ),
]
PAPER = (
    "Li et al., Mining Latent Relationships among Clients: Peer-to-peer Federated Learning with Adaptive Neighbor "
    "Matching, arXiv 2203.12285"
)
METHOD = Method(
    name="PANM",
    configs=["panm_grad", "panm_loss"],
    paper=PAPER,
    equation="algorithms 1 to 3; eq. 3 to 8 and 14 to 18",
    does="Initialisation: of the neighbours and of some strangers the k most similar ones become the neighbours. Matching: "
    "a mixture of two Gaussians, fitted to the similarities of some neighbours and some strangers, tells who of them is "
    "of the client's own cluster. The client averages its own model and its neighbours'.",
    inputs=INPUTS,
    outputs=OUTPUTS,
    readings=[
        (
            "Which component is the client's own cluster? As printed (above eq. 15, and H) the one that strangers start in",
            "neighbours start as component 0, and in the end the component with the larger mean is the own cluster",
            "as printed a matching keeps the wrong cluster; assumption 2 says that mu_0 > mu_1",
        ),
        *OPEN,
    ],
    cases=[
        ("the first round of the initialisation, by gradients", made(1, strangers=RING)),
        ("initialisation, by gradients", made(2, neighbours=RING, strangers=LAST)),
        ("initialisation, by this round's updates alone", made(3, alpha=1.0, neighbours=RING, strangers=LAST)),
        ("initialisation, by losses", made(4, metric="loss", neighbours=RING, strangers=AFTER)),
        ("k above those compared", made(5, k=5, strangers=RING)),
        ("a matching, by gradients", made(6, **MATCHING)),
        ("a matching, by losses", made(7, metric="loss", **MATCHING)),
        ("a matching of some neighbours", made(8, sampled=[[row[0]] for row in RING], **MATCHING)),
        ("all similarities are equal", equal_similarities()),
        ("no stranger to compare with", made(10, **{**MATCHING, "strangers": [[]] * 6})),
    ],
    function=panm,
)
LITERAL = Method(
    name="PANM as printed",
    configs=["panm_literal"],
    paper=PAPER,
    equation="algorithms 1 to 3; eq. 3 to 8 and 14 to 18",
    does="As PANM, but in a matching the strangers start as component 0, and component 0 is kept.",
    inputs=INPUTS,
    outputs=OUTPUTS,
    readings=OPEN,
    cases=[
        ("initialisation, by gradients", made(2, neighbours=RING, strangers=LAST)),
        ("a matching, by gradients", made(6, **MATCHING)),
        ("a matching, by losses", made(7, metric="loss", **MATCHING)),
    ],
    function=panm_literal,
)
