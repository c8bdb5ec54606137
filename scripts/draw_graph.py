"""Draw who learned from whom in a run, out of its graphs.npz.

python scripts/draw_graph.py runs/afind/2026-11-20_14-03-22 graph.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import networkx as nx
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "h"]


def draw(run: Path, picture: Path) -> None:
    """The last recorded round: an arrow from each sender to who mixed its model, wider for more weight."""
    with np.load(run / "graphs.npz") as graphs:
        edges = {name: graphs[name] for name in graphs.files}
    with np.load(run / "split.npz") as split:
        clusters = split["clusters"] if "clusters" in split.files else np.zeros(0)
        clients = len(split["train_offsets"]) - 1
    last = edges["round"] == edges["round"].max()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(clients))
    for receiver, sender, weight in zip(*(edges[n][last] for n in ("receiver", "sender", "weight")), strict=True):
        if receiver != sender and weight > 0 and max(receiver, sender) < clients:
            graph.add_edge(int(sender), int(receiver), weight=float(weight))
    groups = clusters if len(clusters) == clients else np.zeros(clients, dtype=int)
    places = layout(graph)
    figure, axes = plt.subplots(figsize=(6, 5.4))
    axes.set_aspect("equal")
    widths = [0.3 + 3 * graph.edges[e]["weight"] for e in graph.edges]
    nx.draw_networkx_edges(
        graph, places, ax=axes, width=widths, edge_color="#999999", arrowsize=7, alpha=0.7, node_size=260
    )
    for group in np.unique(groups):
        members = [c for c in range(clients) if groups[c] == group]
        style = {"node_color": COLOURS[int(group) % 8], "node_shape": MARKERS[int(group) % 8]}
        nx.draw_networkx_nodes(graph, places, members, ax=axes, node_size=260, label=f"cluster {int(group)}", **style)
    nx.draw_networkx_labels(graph, places, ax=axes, font_size=7, font_color="white")
    axes.set_title(f"who learned from whom in round {int(edges['round'].max())}", fontsize=11)
    if len(np.unique(groups)) > 1:
        axes.legend(loc="lower center", ncols=4, frameon=False, fontsize=8, bbox_to_anchor=(0.5, -0.08))
    axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def layout(graph: nx.DiGraph) -> dict[int, np.ndarray]:
    """Groups that learn from nobody outside each as a circle of their own; a single group by springs."""
    groups = [sorted(group) for group in nx.weakly_connected_components(graph)]
    if len(groups) == 1:
        return nx.spring_layout(graph.to_undirected(), seed=3, iterations=300)
    places: dict[int, np.ndarray] = {}
    for centre, group in zip(nx.circular_layout(range(len(groups)), scale=1.25).values(), groups, strict=True):
        radius = 0.85 * np.sqrt(len(group) / graph.number_of_nodes()) * min(1, len(group) - 1)
        places |= {c: centre + radius * at for c, at in nx.circular_layout(group).items()}
    return places


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    words = parser.parse_args()
    draw(words.run, words.picture)
