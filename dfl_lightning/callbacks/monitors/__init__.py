"""Monitors: what is measured about a round in addition to the models' accuracy."""

from dfl_lightning.callbacks.monitors.consensus_distance import ConsensusDistance
from dfl_lightning.callbacks.monitors.fairness import Fairness
from dfl_lightning.callbacks.monitors.friend_accuracy import FriendAccuracy
from dfl_lightning.callbacks.monitors.graph_sparsity import GraphSparsity
from dfl_lightning.callbacks.monitors.link_messages import LinkMessages
from dfl_lightning.callbacks.monitors.merged_model import MergedModel
from dfl_lightning.callbacks.monitors.neighbour_accuracy import NeighbourAccuracy
from dfl_lightning.callbacks.monitors.simulated_time import SimulatedTime
from dfl_lightning.callbacks.monitors.substitution_error import SubstitutionError

__all__ = [
    "ConsensusDistance",
    "Fairness",
    "FriendAccuracy",
    "GraphSparsity",
    "LinkMessages",
    "MergedModel",
    "NeighbourAccuracy",
    "SimulatedTime",
    "SubstitutionError",
]
