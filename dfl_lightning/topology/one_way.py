"""Clients from which arcs lead away, and never back."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from dfl_lightning.links import AllPairs, Links
from dfl_lightning.topology.graph import Topology, components


def never_reached_back(topology: Topology) -> Tensor:
    """Tell which nodes send, over any number of links, to some that never send back to them, bool [n].

    Args:
        topology: of the run; the links of all its graphs count together. Of a graph that is drawn anew nothing is
            known, and no node is told.

    Examples:
        >>> import networkx as nx
        >>> graph = nx.DiGraph([(0, 1), (1, 2), (2, 1)])
        >>> never_reached_back(Topology(graph, [0, 1, 2])).tolist()
        [True, False, False]
    """
    found = torch.zeros(topology.num_nodes, dtype=torch.bool)
    if any(type(graph) is not Topology for graph in topology.graphs):
        return found
    links = reduce(Links.union, (graph.linked(0) for graph in topology.graphs))
    if isinstance(links, AllPairs) or not len(links):
        return found
    part = components(links, "strong")
    found[part[links.senders[part[links.senders] != part[links.receivers]]]] = True
    return found[part]
