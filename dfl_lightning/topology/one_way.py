"""Clients whose models reach others from which no model ever comes back."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from dfl_lightning.links import AllPairs, Links
from dfl_lightning.topology.graph import Topology, components


def never_reached_back(topology: Topology) -> Tensor:
    """Mark the nodes, bool [n], that reach some other node over any number of links, but are not reached from it.

    Args:
        topology: topology whose graphs are joined for this. If a graph is drawn anew or follows a schedule, its links
            are not known, and no node is marked.

    Examples:
        >>> import networkx as nx
        >>> graph = nx.DiGraph([(0, 1), (1, 2), (2, 1)])
        >>> never_reached_back(Topology(graph, [0, 1, 2])).tolist()
        [True, False, False]
    """
    marked = torch.zeros(topology.num_nodes, dtype=torch.bool)  # of nodes, and later of components
    if any(type(graph) is not Topology for graph in topology.graphs):
        return marked
    links = reduce(Links.union, (graph.linked(0) for graph in topology.graphs))
    if isinstance(links, AllPairs) or not len(links):
        return marked
    component = components(links, "strong")
    marked[component[links.senders[component[links.senders] != component[links.receivers]]]] = True
    return marked[component]
