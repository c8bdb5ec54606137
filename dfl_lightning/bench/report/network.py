"""The collaboration graph of each round, as the report shows it: links with a state, nodes with a position."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import networkx as nx
import numpy as np

from dfl_lightning.bench.report.over_seeds import thinned
from dfl_lightning.runs.reading import Run

KEPT, NEW, DROPPED, PROBED, OWN = "kept", "new", "dropped", "probed", "own"
SUBSTITUTE, STANDS_IN = "substitute", "stands_in"
"""States of a link: chosen as in the round shown before, chosen anew, mixed without being chosen (in place of a client
that has dropped out), not chosen any more, probed only; the receiver's own model; and, under a server, who stands in
for whom. A link that is not chosen any more, but still probed, has both states.
"""

MOST_ROUNDS = 50
"""Rounds that the page holds at most."""

_EXACT_LAYOUT = 300
"""Up to this number of nodes a spring layout is computed; beyond, clients stand on circles by cluster."""


class Link(NamedTuple):
    """One receiver's link to one sender in a round."""

    receiver: int
    sender: int
    state: str
    weight: float


def number_of_nodes(run: Run) -> tuple[int, int]:
    """Clients, and nodes: the clients and the servers."""
    clients = run.clients.get(run.score.column, run.clients.get(f"val_{run.score.name}"))
    graphs = run.graphs
    highest = max((int(graphs[name].max()) + 1 for name in ("receiver",) if len(graphs.get(name, []))), default=0)
    m = run.num_clients or (clients.shape[1] if clients is not None else highest)
    return int(m), max(int(m), highest)


def recorded_rounds(run: Run, most: int = MOST_ROUNDS) -> list[int]:
    """The rounds whose links are shown, thinned evenly.

    Args:
        run: with recorded links.
        most: rounds to show.
    """
    found = np.unique(run.graphs.get("round", np.array([], dtype=np.int64)))
    return [int(found[i]) for i in thinned(len(found), most)]


def links_by_round(run: Run, rounds: list[int]) -> dict[int, list[Link]]:
    """The links of some rounds, each compared with the round before it in the list.

    Args:
        run: with recorded links.
        rounds: 0-based, ascending.
    """
    m, n = number_of_nodes(run)
    graphs = run.graphs
    before: set[tuple[int, int]] = set()
    found: dict[int, list[Link]] = {}
    for round in rounds:
        here = graphs["round"] == round
        chosen: dict[tuple[int, int], float] = {}
        others: list[Link] = []
        columns = (graphs[name][here].tolist() for name in ("receiver", "sender", "weight", "selected", "probed"))
        for i, j, w, selected, probed in zip(*columns, strict=True):
            if j >= n:
                others.append(Link(i, j - n if j - n < m else j, SUBSTITUTE, w))  # a stored update of that client
            elif i == j:
                others.append(Link(i, j, OWN, w))
            elif selected:
                chosen[i, j] = w
            elif w:
                others.append(Link(i, j, SUBSTITUTE, w))
            elif probed:
                others.append(Link(i, j, PROBED, 0.0))
        mixed = {(link.receiver, link.sender) for link in others if link.state == SUBSTITUTE}
        gone = before - set(chosen) - mixed
        others += _stand_ins(run, round) if n > m else []
        links = [Link(i, j, KEPT if (i, j) in before else NEW, w) for (i, j), w in chosen.items()]
        found[round] = [*links, *(Link(i, j, DROPPED, 0.0) for i, j in sorted(gone)), *others]
        before = set(chosen)
    return found


def largest_weight(run: Run) -> float:
    """The largest weight that a receiver's new model gives to another's, over all recorded rounds; 1 where none does.

    Colours of weights are scaled to it, since a receiver's own model may weigh far more.

    Args:
        run: with recorded links.
    """
    others = run.graphs["receiver"] != run.graphs["sender"]
    return float(run.graphs["weight"][others].max(initial=0.0)) or 1.0


def _stand_ins(run: Run, round: int) -> list[Link]:
    """From a client that dropped out to the client mixed in its place at the servers."""
    columns = run.substitutes
    if not columns:
        return []
    m = number_of_nodes(run)[0]
    here = columns["round"] == round
    pairs = {(int(c), int(s)) for c, s in zip(columns["client"][here], columns["substitute"][here], strict=True)}
    return [Link(client, friend, STANDS_IN, 0.0) for client, friend in sorted(pairs) if 0 <= friend < m]


def links_shown(links: list[Link]) -> int:
    """How many links the graph draws of a round."""
    return sum(link.state != OWN for link in links)


_NODES: WeakKeyDictionary[Run, list[dict[str, Any]]] = WeakKeyDictionary()


def nodes(run: Run) -> list[dict[str, Any]]:
    """Clients and servers: `id`, `x`, `y` from -1 to 1, `cluster` (-1: not known), `server`, `falsified`, `order`.

    `falsified` says in words what is: labels, messages, both, or nothing.

    They are computed once for a run, since its graph, its matrix and the page have the same: do not change them.
    """
    if run not in _NODES:
        _NODES[run] = _nodes(run)
    return _NODES[run]


def _nodes(run: Run) -> list[dict[str, Any]]:
    m, n = number_of_nodes(run)
    clusters = run.split.get("clusters", np.array([]))
    labels = run.split.get("adversaries", np.array([]))
    labels = labels if len(labels) == m else np.zeros(m, dtype=bool)
    messages = np.isin(np.arange(m), run.summary.get("adversaries", []))
    known = len(clusters) == m
    places = positions(run, m, n)
    order = np.argsort(clusters, kind="stable") if known else np.arange(m)
    rank = {int(client): at for at, client in enumerate(order)}
    return [
        {
            "id": i,
            "x": round(places[i][0], 4),
            "y": round(places[i][1], 4),
            "cluster": int(clusters[i]) if known and i < m else -1,
            "server": i >= m,
            "falsified": " and ".join(
                word for word, who in (("labels", labels), ("messages", messages)) if i < m and who[i]
            ),
            "order": rank.get(i, i),
        }
        for i in range(n)
    ]


def positions(run: Run, m: int, n: int) -> list[tuple[float, float]]:
    """A place (x, y) for each node, the same in all rounds: clients that often mix each other are close.

    Args:
        run: with recorded links.
        m: number of clients.
        n: number of nodes.
    """
    if n > m:
        return _around_servers(run, m, n)
    if n > _EXACT_LAYOUT or n < 3:
        return _circles(run, m)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graphs = run.graphs
    if len(graphs.get("round", [])):
        picked = graphs["selected"] & (graphs["sender"] < n) & (graphs["sender"] != graphs["receiver"])
        ends = np.sort(np.stack([graphs["receiver"][picked], graphs["sender"][picked]], 1).astype(np.int64), axis=1)
        pairs, counts = np.unique(ends[:, 0] * n + ends[:, 1], return_counts=True)
        rounds = len(np.unique(graphs["round"]))
        ties = (counts / (2 * rounds)) ** 2 * 4
        graph.add_weighted_edges_from(zip((pairs // n).tolist(), (pairs % n).tolist(), ties.tolist(), strict=True))
    clusters = run.split.get("clusters", np.array([]))
    if len(clusters) == m:  # a weak tie, so that scattered members of a cluster stand together
        for cluster in np.unique(clusters):
            members = np.flatnonzero(clusters == cluster)
            for i, j in zip(members, np.roll(members, 1), strict=True):
                if i != j:
                    old = graph.get_edge_data(int(i), int(j), {"weight": 0.0})["weight"]
                    graph.add_edge(int(i), int(j), weight=old + 0.35)
    start = dict(enumerate(_circles(run, m)))
    found = nx.spring_layout(graph, pos=start, k=3.2 / math.sqrt(n), iterations=60, seed=0, weight="weight")
    return _fitted(_apart([(float(found[i][0]), float(found[i][1])) for i in range(n)]))


def _circles(run: Run, m: int) -> list[tuple[float, float]]:
    """Clients on small circles, a circle a cluster, around the middle; on one circle where none are known."""
    clusters = run.split.get("clusters", np.array([]))
    if len(clusters) != m or len(np.unique(clusters)) < 2:
        return [(math.sin(2 * math.pi * i / m), math.cos(2 * math.pi * i / m)) for i in range(m)]
    names, found = np.unique(clusters), [(0.0, 0.0)] * m
    radius = min(0.42, 1.1 * math.sin(math.pi / len(names)) / (1 + math.sin(math.pi / len(names))))
    for place, name in enumerate(names):
        angle = 2 * math.pi * place / len(names) + math.pi / 4
        centre = ((1 - radius) * math.sin(angle), (1 - radius) * math.cos(angle))
        members = np.flatnonzero(clusters == name)
        for at, client in enumerate(members):
            turn = 2 * math.pi * at / len(members)
            size = radius if len(members) > 1 else 0.0
            found[int(client)] = (centre[0] + size * math.sin(turn), centre[1] + size * math.cos(turn))
    return found


def _around_servers(run: Run, m: int, n: int) -> list[tuple[float, float]]:
    """Clients on a circle in the order of their clusters, servers in the middle."""
    clusters = run.split.get("clusters", np.array([]))
    order = np.argsort(clusters, kind="stable") if len(clusters) == m else np.arange(m)
    found = [(0.0, 0.0)] * n
    for at, client in enumerate(order):
        turn = 2 * math.pi * at / m
        found[int(client)] = (math.sin(turn), math.cos(turn))
    servers = n - m
    for s in range(servers):
        turn = 2 * math.pi * s / servers
        size = 0.3 if servers > 1 else 0.0
        found[m + s] = (size * math.sin(turn), size * math.cos(turn))
    return found


def _apart(places: list[tuple[float, float]], steps: int = 100) -> list[tuple[float, float]]:
    """Push apart nodes that cover each other."""
    points = np.array(_fitted(places))
    least = min(0.4, 1.75 / math.sqrt(len(points)))
    for _ in range(steps):
        delta = points[:, None] - points[None]
        distance = np.sqrt(delta[..., 0] ** 2 + delta[..., 1] ** 2) + np.eye(len(points)) * 9 + 1e-9
        push = np.clip(least - distance, 0, None) / distance
        if not push.any():
            break
        points = points + 0.5 * (delta * push[..., None]).sum(1)
    return [(float(x), float(y)) for x, y in points]


def _fitted(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same places from -1 to 1 in both directions, circles kept round."""
    points = np.array(places)
    middle = (points.max(0) + points.min(0)) / 2
    half = float((points.max(0) - points.min(0)).max()) / 2 or 1.0
    return [(float(x), float(y)) for x, y in (points - middle) / half]
