"""Topologies: topology files, their networkx graphs, and the links that a round reads."""

from dfl_lightning.topology.graph import Topology, spectral_gap
from dfl_lightning.topology.neighbour_counts import Reach, most_neighbours, reach
from dfl_lightning.topology.one_way import never_reached_back
from dfl_lightning.topology.over_time.moving import MovingTopology
from dfl_lightning.topology.reading.load import load_topology, method_of, moves, own_class

__all__ = [
    "MovingTopology",
    "Reach",
    "Topology",
    "load_topology",
    "method_of",
    "most_neighbours",
    "moves",
    "never_reached_back",
    "own_class",
    "reach",
    "spectral_gap",
]
