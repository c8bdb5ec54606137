"""Draw who learned from whom in a round of a run, or who may receive from whom in a round of a topology.

python scripts/draw_graph.py runs/afind/2026-11-20_14-03-22 graph.png
python scripts/draw_graph.py runs/afind/2026-11-20_14-03-22 graph.png --round 4
python scripts/draw_graph.py ring_then_complete graph.png --clients 24 --round 12
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import networkx as nx
import numpy as np

from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "h"]


def draw(run: Path, picture: Path, round: int | None = None) -> None:
    """A recorded round, by default the last: an arrow from a sender to who mixed its model, wider for more weight."""
    with np.load(run / "graphs.npz") as graphs:
        edges = {name: graphs[name] for name in graphs.files}
    with np.load(run / "split.npz") as split:
        clusters = split["clusters"] if "clusters" in split.files else np.zeros(0)
        clients = len(split["train_offsets"]) - 1
    recorded = edges["round"]
    if round is None:
        round = int(recorded.max())
    elif round not in recorded:
        raise UserError(f"{run}: round {round} is not recorded; rounds {recorded.min()} to {recorded.max()} are.")
    chosen = recorded == round
    graph = nx.DiGraph()
    graph.add_nodes_from(range(clients))
    for receiver, sender, weight in zip(*(edges[n][chosen] for n in ("receiver", "sender", "weight")), strict=True):
        if receiver != sender and weight > 0 and max(receiver, sender) < clients:
            graph.add_edge(int(sender), int(receiver), weight=float(weight))
    groups = clusters if len(clusters) == clients else np.zeros(clients, dtype=int)
    paint(graph, groups, f"who learned from whom in round {round}", picture)


def draw_topology(source: str, picture: Path, clients: int, round: int, seed: int) -> None:
    """Who may receive from whom in a round over the active links; lines without arrows go both ways."""
    topology = load_topology(source, clients, seed)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    links = topology.reachable(round)
    graph.add_edges_from(zip(links.senders.tolist(), links.receivers.tolist(), strict=True), weight=0.25)
    groups = np.zeros(topology.num_nodes, dtype=int)
    if topology.clusters is not None:
        groups[:clients] = topology.clusters.numpy()
    title = f"{topology.at(round).name} graph: who receives from whom"
    paint(graph, groups, f"{title} in round {round}" if topology.changes else title, picture)


def paint(graph: nx.DiGraph, groups: np.ndarray, title: str, picture: Path) -> None:
    """Nodes in the colours of their groups, and arcs as wide as their weights."""
    places = layout(graph)
    figure, axes = plt.subplots(figsize=(6, 5.4))
    axes.set_aspect("equal")
    both_ways = all(graph.has_edge(v, u) and graph.edges[v, u] == graph.edges[u, v] for u, v in graph.edges)
    lines = graph.to_undirected() if both_ways else graph
    widths = [0.3 + 3 * lines.edges[e]["weight"] for e in lines.edges]
    arrows = {} if both_ways else {"arrowsize": 7, "node_size": 260}
    nx.draw_networkx_edges(lines, places, ax=axes, width=widths, edge_color="#999999", alpha=0.7, **arrows)
    for group in np.unique(groups):
        members = [node for node in graph if groups[node] == group]
        style = {"node_color": COLOURS[int(group) % 8], "node_shape": MARKERS[int(group) % 8]}
        nx.draw_networkx_nodes(graph, places, members, ax=axes, node_size=260, label=f"cluster {int(group)}", **style)
    nx.draw_networkx_labels(graph, places, ax=axes, font_size=7, font_color="white")
    axes.set_title(title, fontsize=11)
    if len(np.unique(groups)) > 1:
        axes.legend(loc="lower center", ncols=4, frameon=False, fontsize=8, bbox_to_anchor=(0.5, -0.08))
    axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def layout(graph: nx.DiGraph) -> dict[int, np.ndarray]:
    """Groups that learn from no client outside each as a circle of their own; a single group by springs."""
    groups = [sorted(group) for group in nx.weakly_connected_components(graph)]
    if len(groups) == 1:
        return nx.spring_layout(graph.to_undirected(), seed=3, iterations=300)
    places: dict[int, np.ndarray] = {}
    for centre, group in zip(nx.circular_layout(range(len(groups)), scale=1.25).values(), groups, strict=True):
        radius = 0.85 * np.sqrt(len(group) / graph.number_of_nodes()) * min(1, len(group) - 1)
        places |= {c: centre + radius * at for c, at in nx.circular_layout(group).items()}
    return places


def main(words: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a run folder, or a topology: a file, or the name of a shipped one")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--round", type=int, help="default: the last one of a run, the first one of a topology")
    parser.add_argument("--clients", type=int, help="of a topology")
    parser.add_argument("--seed", type=int, default=0, help="of a topology whose file names none (default: 0)")
    given = parser.parse_args(None if words is None else list(words))
    is_run = (Path(given.source) / "graphs.npz").is_file()
    if given.round is not None and given.round < 0:
        parser.error(f"--round {given.round}; rounds are counted from 0")
    if not is_run and given.clients is None:
        parser.error(f"{given.source} is no run folder; if it is a topology, say how many --clients it has")
    try:
        if is_run:
            draw(Path(given.source), given.picture, given.round)
        else:
            draw_topology(given.source, given.picture, given.clients, given.round or 0, given.seed)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
