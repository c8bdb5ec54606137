"""The numbers of neighbours in reach, over the rounds of a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dfl_lightning.topology.graph import Topology

_MOST_ROUNDS = 100
_MOST_ROWS = 20_000


class Reach(NamedTuple):
    """Numbers of neighbours of a node in a round, over links that are up.

    Attributes:
        mean: over nodes and rounds.
        least: the smallest number of a node in a round.
        most: the largest number of a node in a round.
        rounds: number of rounds that were counted.
    """

    mean: float
    least: int
    most: int
    rounds: int


def reach(topology: Topology, rounds: int) -> Reach:
    """Count neighbours over a run; with many rounds or nodes, evenly spaced rounds are counted.

    Args:
        topology: of the run.
        rounds: of the run, which starts with round 0.

    Examples:
        >>> import networkx as nx
        >>> reach(Topology(nx.path_graph(4), list(range(4))), rounds=30)
        Reach(mean=1.5, least=1, most=2, rounds=1)
    """
    looks = min(max(rounds, 1), _MOST_ROUNDS, max(10, _MOST_ROWS // topology.num_nodes)) if topology.changes else 1
    heard = [topology.reachable(look * rounds // looks).count for look in range(looks)]
    return Reach(
        mean=float(sum(float(row.double().mean()) for row in heard) / looks),
        least=min(int(row.min()) for row in heard),
        most=max(int(row.max()) for row in heard),
        rounds=looks,
    )


def most_neighbours(topology: Topology) -> Tensor:
    """Return the most neighbours that each node has in a round, as far as that is known before the first one, long [n].

    Args:
        topology: of the run. Of a graph that is drawn anew, only the number of nodes is known.

    Examples:
        >>> import networkx as nx
        >>> most_neighbours(Topology(nx.path_graph(4), list(range(4)))).tolist()
        [1, 2, 2, 1]
    """
    if any(type(graph) is not Topology for graph in topology.graphs):
        return torch.full((topology.num_nodes,), topology.num_nodes - 1)
    return torch.stack([graph.linked(0).count for graph in topology.graphs]).amax(0)
