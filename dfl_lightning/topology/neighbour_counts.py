"""Numbers of in-neighbours over the rounds of a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dfl_lightning.topology.graph import Topology

_MOST_ROUNDS = 100
_MOST_ROWS = 20_000


class Reach(NamedTuple):
    """Statistics of the number of in-neighbours that a node has in a round, over links that are up.

    Attributes:
        mean: mean number over nodes and rounds.
        least: smallest number of a node in a round.
        most: largest number of a node in a round.
        rounds: number of rounds that were counted.
    """

    mean: float
    least: int
    most: int
    rounds: int


def reach(topology: Topology, rounds: int) -> Reach:
    """Count in-neighbours over a run; of many rounds, or with many nodes, only evenly spaced rounds are counted.

    Args:
        topology: topology of clients, and of servers, if there are any.
        rounds: number of rounds of the run.

    Examples:
        >>> import networkx as nx
        >>> reach(Topology(nx.path_graph(4), list(range(4))), rounds=30)
        Reach(mean=1.5, least=1, most=2, rounds=1)
    """
    counted = min(max(rounds, 1), _MOST_ROUNDS, max(10, _MOST_ROWS // topology.num_nodes)) if topology.changes else 1
    in_degrees = [topology.reachable(number * rounds // counted).count for number in range(counted)]
    return Reach(
        mean=float(sum(float(row.double().mean()) for row in in_degrees) / counted),
        least=min(int(row.min()) for row in in_degrees),
        most=max(int(row.max()) for row in in_degrees),
        rounds=counted,
    )


def most_neighbours(topology: Topology) -> Tensor:
    """Return a bound, known before the first round, on the in-neighbours of each node in a round, long [n].

    It is the largest in-degree in the topology's graphs, or n - 1 if a graph is drawn anew or follows a schedule.

    Args:
        topology: topology of clients, and of servers, if there are any.

    Examples:
        >>> import networkx as nx
        >>> most_neighbours(Topology(nx.path_graph(4), list(range(4)))).tolist()
        [1, 2, 2, 1]
    """
    if any(type(graph) is not Topology for graph in topology.graphs):
        return torch.full((topology.num_nodes,), topology.num_nodes - 1)
    return torch.stack([graph.linked(0).count for graph in topology.graphs]).amax(0)
