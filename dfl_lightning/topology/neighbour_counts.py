"""The numbers of neighbours in reach, over the rounds of a run."""

from __future__ import annotations

from typing import NamedTuple

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
    """Numbers of neighbours over a run; with many rounds or nodes, evenly spaced rounds are counted.

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
