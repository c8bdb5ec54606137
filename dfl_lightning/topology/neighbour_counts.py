"""How many each client can hear, over the rounds of a run."""

from __future__ import annotations

from typing import NamedTuple

from dfl_lightning.topology.graph import Topology

_MOST_ROUNDS = 100
_MOST_ROWS = 20_000


class Reach(NamedTuple):
    """How many a node hears in a round over the links that are up.

    Attributes:
        mean: over nodes and rounds.
        least: the fewest that a node hears in a round.
        most: the most that a node hears in a round.
        rounds: how many rounds were looked at.
    """

    mean: float
    least: int
    most: int
    rounds: int


def reach(topology: Topology, rounds: int) -> Reach:
    """How many each node can hear, over a run; of many rounds or nodes, some rounds evenly spaced are looked at.

    Args:
        topology: who can talk to whom.
        rounds: of the run, which starts with round 0.

    Example:
        >>> import networkx as nx
        >>> reach(Topology(nx.path_graph(4), list(range(4))), rounds=30)
        Reach(mean=1.5, least=1, most=2, rounds=1)
    """
    looks = min(max(rounds, 1), _MOST_ROUNDS, max(10, _MOST_ROWS // topology.num_nodes)) if topology.changes else 1
    heard = [topology.reachable(look * rounds // looks).sum(1) for look in range(looks)]
    return Reach(
        mean=float(sum(float(row.double().mean()) for row in heard) / looks),
        least=min(int(row.min()) for row in heard),
        most=max(int(row.max()) for row in heard),
        rounds=looks,
    )
