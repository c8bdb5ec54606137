"""The collaboration graph of each round in reports: links with a state, and nodes with a position."""

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
"""States of a link.

- `KEPT`: chosen, as in the round that is shown before
- `NEW`: chosen, but not in the round before
- `DROPPED`: chosen in the round before, but no longer
- `PROBED`: probed, but not chosen; a link may be `DROPPED` and `PROBED` at once
- `OWN`: the receiver's own model
- `SUBSTITUTE`: mixed without being chosen, as a substitute of a client that has dropped out
- `STANDS_IN`: under a server, from a client that has dropped out to its substitute
"""

MOST_ROUNDS = 50
"""Largest number of rounds in a page."""

_EXACT_LAYOUT = 300
"""Up to this number of nodes a spring layout is computed; with more, each cluster is placed on a circle."""


class Link(NamedTuple):
    """A link between a receiver and a sender in a round."""

    receiver: int
    sender: int
    state: str
    weight: float


def number_of_nodes(run: Run) -> tuple[int, int]:
    """Return the number of clients, and the number of nodes: clients and servers."""
    clients = run.clients.get(run.score.column, run.clients.get(f"val_{run.score.name}"))
    graphs = run.graphs
    highest = max((int(graphs[name].max()) + 1 for name in ("receiver",) if len(graphs.get(name, []))), default=0)
    m = run.num_clients or (clients.shape[1] if clients is not None else highest)
    return int(m), max(int(m), highest)


def recorded_rounds(run: Run, most: int = MOST_ROUNDS) -> list[int]:
    """List the rounds whose links are shown, 0-based: evenly spaced ones among the recorded rounds.

    Args:
        run: may have no recorded links; the list is empty then.
        most: largest number of rounds to show.
    """
    recorded = np.unique(run.graphs.get("round", np.array([], dtype=np.int64)))
    return [int(recorded[i]) for i in thinned(len(recorded), most)]


def links_by_round(run: Run, rounds: list[int]) -> dict[int, list[Link]]:
    """Return the links of some rounds, with their states in comparison to the round before in the list.

    Args:
        run: with recorded links.
        rounds: 0-based, ascending.
    """
    m, n = number_of_nodes(run)
    graphs = run.graphs
    before: set[tuple[int, int]] = set()
    by_round: dict[int, list[Link]] = {}
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
        others += _links_to_substitutes(run, round) if n > m else []
        links = [Link(i, j, KEPT if (i, j) in before else NEW, w) for (i, j), w in chosen.items()]
        by_round[round] = [*links, *(Link(i, j, DROPPED, 0.0) for i, j in sorted(gone)), *others]
        before = set(chosen)
    return by_round


def largest_weight(run: Run) -> float:
    """Return the largest weight of another client's model in a new model, over all recorded rounds; 1 if there is none.

    Colours of weights end at it, since a receiver's own model may weigh far more.

    Args:
        run: with recorded links.
    """
    others = run.graphs["receiver"] != run.graphs["sender"]
    return float(run.graphs["weight"][others].max(initial=0.0)) or 1.0


def _links_to_substitutes(run: Run, round: int) -> list[Link]:
    """List links from each client that dropped out to the client that the servers mix instead of it."""
    columns = run.substitutes
    if not columns:
        return []
    m = number_of_nodes(run)[0]
    here = columns["round"] == round
    pairs = {(int(c), int(s)) for c, s in zip(columns["client"][here], columns["substitute"][here], strict=True)}
    return [Link(client, friend, STANDS_IN, 0.0) for client, friend in sorted(pairs) if 0 <= friend < m]


def links_shown(links: list[Link]) -> int:
    """Count the links of a round that the graph draws."""
    return sum(link.state != OWN for link in links)


_NODES: WeakKeyDictionary[Run, list[dict[str, Any]]] = WeakKeyDictionary()


def nodes(run: Run) -> list[dict[str, Any]]:
    """Return the nodes of a run's graph, clients before servers, one dict for each node.

    The keys are `id`; `x` and `y`, from -1 to 1; `cluster`, -1 if unknown; `server`, true or false; `falsified`, what
    the client falsifies in words (labels, messages, both, or empty); and `order`, its row in the matrix. The list is
    computed once for a run, and shared by the graph, the matrix and the page: do not change it.
    """
    if run not in _NODES:
        _NODES[run] = _nodes(run)
    return _NODES[run]


def _nodes(run: Run) -> list[dict[str, Any]]:
    xy = positions(run, *number_of_nodes(run))
    return [
        {"id": node["id"], "x": round(x, 4), "y": round(y, 4), **node}
        for node, (x, y) in zip(clients_only(run), xy, strict=True)
    ]


def clients_only(run: Run) -> list[dict[str, Any]]:
    """Return the nodes of a run's graph without positions, which take time; see `nodes`.

    Args:
        run: finished or not.
    """
    m, n = number_of_nodes(run)
    clusters = run.split.get("clusters", np.array([]))
    labels = run.split.get("adversaries", np.array([]))
    labels = labels if len(labels) == m else np.zeros(m, dtype=bool)
    messages = np.isin(np.arange(m), run.summary.get("adversaries", []))
    has_clusters = len(clusters) == m
    order = np.argsort(clusters, kind="stable") if has_clusters else np.arange(m)
    rank = {int(client): row for row, client in enumerate(order)}
    return [
        {
            "id": i,
            "cluster": int(clusters[i]) if has_clusters and i < m else -1,
            "server": i >= m,
            "falsified": " and ".join(
                word for word, mask in (("labels", labels), ("messages", messages)) if i < m and mask[i]
            ),
            "order": rank.get(i, i),
        }
        for i in range(n)
    ]


def positions(run: Run, m: int, n: int) -> list[tuple[float, float]]:
    """Compute a position (x, y) for each node, from -1 to 1, the same in all rounds.

    Clients that often choose each other are close.

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
    if len(clusters) == m:  # a weak tie keeps members of a cluster together even if they do not choose each other
        for cluster in np.unique(clusters):
            members = np.flatnonzero(clusters == cluster)
            for i, j in zip(members, np.roll(members, 1), strict=True):
                if i != j:
                    old = graph.get_edge_data(int(i), int(j), {"weight": 0.0})["weight"]
                    graph.add_edge(int(i), int(j), weight=old + 0.35)
    start = dict(enumerate(_circles(run, m)))
    layout = nx.spring_layout(graph, pos=start, k=3.2 / math.sqrt(n), iterations=60, seed=0, weight="weight")
    return _scaled(_pushed_apart([(float(layout[i][0]), float(layout[i][1])) for i in range(n)]))


def _circles(run: Run, m: int) -> list[tuple[float, float]]:
    """Place each cluster on a small circle around the middle; if clusters are unknown, all clients on one circle."""
    clusters = run.split.get("clusters", np.array([]))
    if len(clusters) != m or len(np.unique(clusters)) < 2:
        return [(math.sin(2 * math.pi * i / m), math.cos(2 * math.pi * i / m)) for i in range(m)]
    names, xy = np.unique(clusters), [(0.0, 0.0)] * m
    radius = min(0.42, 1.1 * math.sin(math.pi / len(names)) / (1 + math.sin(math.pi / len(names))))
    for number, name in enumerate(names):
        angle = 2 * math.pi * number / len(names) + math.pi / 4
        centre = ((1 - radius) * math.sin(angle), (1 - radius) * math.cos(angle))
        members = np.flatnonzero(clusters == name)
        for rank, client in enumerate(members):
            turn = 2 * math.pi * rank / len(members)
            size = radius if len(members) > 1 else 0.0
            xy[int(client)] = (centre[0] + size * math.sin(turn), centre[1] + size * math.cos(turn))
    return xy


def _around_servers(run: Run, m: int, n: int) -> list[tuple[float, float]]:
    """Place clients on a circle in the order of their clusters, and servers in the middle."""
    clusters = run.split.get("clusters", np.array([]))
    order = np.argsort(clusters, kind="stable") if len(clusters) == m else np.arange(m)
    xy = [(0.0, 0.0)] * n
    for rank, client in enumerate(order):
        turn = 2 * math.pi * rank / m
        xy[int(client)] = (math.sin(turn), math.cos(turn))
    servers = n - m
    for s in range(servers):
        turn = 2 * math.pi * s / servers
        size = 0.3 if servers > 1 else 0.0
        xy[m + s] = (size * math.sin(turn), size * math.cos(turn))
    return xy


def _pushed_apart(xy: list[tuple[float, float]], steps: int = 100) -> list[tuple[float, float]]:
    """Push apart nodes that cover each other."""
    points = np.array(_scaled(xy))
    least = min(0.4, 1.75 / math.sqrt(len(points)))
    for _ in range(steps):
        delta = points[:, None] - points[None]
        distance = np.sqrt(delta[..., 0] ** 2 + delta[..., 1] ** 2) + np.eye(len(points)) * 9 + 1e-9
        push = np.clip(least - distance, 0, None) / distance
        if not push.any():
            break
        points = points + 0.5 * (delta * push[..., None]).sum(1)
    return [(float(x), float(y)) for x, y in points]


def _scaled(xy: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Move and scale positions to lie from -1 to 1; both axes have the same scale, so that circles stay round."""
    points = np.array(xy)
    middle = (points.max(0) + points.min(0)) / 2
    half = float((points.max(0) - points.min(0)).max()) / 2 or 1.0
    return [(float(x), float(y)) for x, y in (points - middle) / half]
