"""Monitors: what is measured about a round beside the models' accuracy."""

from dfl_lightning.callbacks.monitors.friend_accuracy import FriendAccuracy
from dfl_lightning.callbacks.monitors.neighbour_accuracy import NeighbourAccuracy
from dfl_lightning.callbacks.monitors.substitution_error import SubstitutionError

__all__ = ["FriendAccuracy", "NeighbourAccuracy", "SubstitutionError"]
