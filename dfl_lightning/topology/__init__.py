"""Who can talk to whom: topology files, their networkx graphs, and the masks that a round reads."""

from dfl_lightning.topology.graph import Topology, spectral_gap
from dfl_lightning.topology.load import load_topology

__all__ = ["Topology", "load_topology", "spectral_gap"]
