"""The Base-(k+1) graph, algorithms 1 to 3 of its paper, as dense matrices and one node after the other."""

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import ROWS


def fewest(n, most):
    """As few factors of at most `most` as make n; None where a prime is larger."""
    if n == 1:
        return []
    found = [fewest(n // d, most) for d in range(2, min(n, most) + 1) if n % d == 0]
    found = [[n // int(np.prod(rest, initial=1)), *rest] for rest in found if rest is not None]
    return min(found, key=len) if found else None


def average(weights, group):
    for i in group:
        for j in group:
            weights[i, j] = 1 / len(group)


def hypercube(nodes, k):
    """Rounds, each a list of groups that average."""
    rounds, stride = [], 1
    for factor in fewest(len(nodes), k + 1):
        groups = {}
        for place, node in enumerate(nodes):
            groups.setdefault((place % stride, place // (stride * factor)), []).append(node)
        rounds.append(list(groups.values()))
        stride *= factor
    return rounds


def simple(m, nodes, k):
    """Mixing matrices [m, m] of algorithm 2 on some of the nodes; the others keep what they have."""
    if fewest(len(nodes), k + 1) is not None:
        matrices = []
        for groups in hypercube(nodes, k):
            matrices.append(np.eye(m))
            for group in groups:
                average(matrices[-1], group)
        return matrices
    parts, left, power = [], list(nodes), 1
    while power * (k + 1) <= len(nodes):
        power *= k + 1
    while left:
        a = len(left) // power
        if a:
            parts.append([left[i * power : (i + 1) * power] for i in range(a)])
            left = left[a * power :]
        power //= k + 1
    matrices = []
    whole = [hypercube([node for piece in pieces for node in piece], k) for pieces in parts]
    for number in range(len(whole[0])):
        matrices.append(np.eye(m))
        for rounds in whole:
            for group in rounds[number % len(rounds)] if rounds else []:
                average(matrices[-1], group)
    for place, pieces in enumerate(parts[:-1]):
        weights, free = np.eye(m), [list(piece) for piece in pieces]
        later = [node for others in parts[place + 1 :] for piece in others for node in piece]
        own = sum(len(piece) for piece in pieces)
        for node in later:
            for piece in free:
                other = piece.pop()
                share = own / (len(pieces) * (own + len(later)))
                weights[node, other] = weights[other, node] = share
                weights[other, other] -= share
                weights[node, node] -= share
        matrices.append(weights)
    for number in range(max(len(hypercube(pieces[0], k)) for pieces in parts)):
        matrices.append(np.eye(m))
        for pieces in parts:
            for piece in pieces:
                rounds = hypercube(piece, k)
                for group in rounds[number] if number < len(rounds) else []:
                    average(matrices[-1], group)
    return matrices


def duration(n, k):
    """Rounds of algorithm 2, in which pieces average while later parts are served."""
    if fewest(n, k + 1) is not None:
        return len(fewest(n, k + 1))
    power, p = 1, 0
    while power * (k + 1) <= n:
        power, p = power * (k + 1), p + 1
    return len(fewest(n // power * power, k + 1)) + 1 + p


def base(m, k):
    """Mixing matrices of algorithm 3, one step after the other, and in how many rounds they fit."""
    p = max(d for d in range(1, m + 1) if m % d == 0 and fewest(d, k + 1) is not None)
    q = m // p
    rounds = duration(q, k) + len(fewest(p, k + 1))
    if duration(m, k) < rounds:
        return simple(m, list(range(m)), k), duration(m, k)
    groups = [list(range(l * q, (l + 1) * q)) for l in range(p)]
    matrices = []
    for several in zip(*(simple(m, group, k) for group in groups), strict=True):
        matrices.append(sum(several) - (p - 1) * np.eye(m))
    for across in hypercube(list(range(p)), k):
        matrices.append(np.eye(m))
        for place in range(q):
            for group in across:
                average(matrices[-1], [groups[l][place] for l in group])
    return matrices, rounds


def base_graph(models, k):
    matrices, rounds = base(len(models), k)
    degree = max(((weights - np.diag(np.diag(weights))) > 0).sum(1).max() for weights in matrices) if matrices else 0
    for weights in matrices:
        models = weights @ models
    return {"rounds": rounds, "degree": int(degree), "models": models}


def based(seed, m, k, width=4):
    return {"models": Numbers(seed).floats(m, width, size=2), "k": k}


METHOD = Method(
    name="Base-(k+1) graph",
    configs=["base_graph"],
    paper="Takezawa et al., Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via Finite-time Convergence, NeurIPS 2023, arXiv 2305.11420",
    equation="algorithms 1 to 3, theorem 1",
    does="A sequence of symmetric mixing matrices with at most k neighbours in each round, after which all clients have the "
    "exact mean of their models, for any number of clients.",
    inputs={"models": f"before the first round, {ROWS}; none trains", "k": "the largest number of neighbours"},
    outputs={
        "rounds": "until all have the mean",
        "degree": "the largest number of neighbours of a client in one of them",
        "models": f"after these rounds, {ROWS}",
    },
    readings=[
        (
            "Which of several free nodes is linked, and how are clients numbered?",
            "not tested: outputs are those of all such graphs",
            "the paper leaves it open",
        ),
        ("Into which factors is a number split?", "as few as there can be", "the paper's minimal L"),
        (
            "Algorithm 2 or 3 where both take as many rounds?",
            "not tested: outputs are the same",
            "the paper asks for the shorter one",
        ),
    ],
    cases=[
        ("five, one neighbour", based(121, 5, 1)),
        ("eight, one neighbour: a hypercube", based(122, 8, 1)),
        ("seven, two neighbours", based(123, 7, 2)),
        ("twelve, four neighbours", based(124, 12, 4)),
        ("fourteen, one neighbour: two graphs of seven", based(125, 14, 1)),
        ("six, all others", based(126, 6, 5)),
    ],
    function=base_graph,
)
