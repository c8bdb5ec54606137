"""Monitors: what is measured about a round beside the models' accuracy."""

from dfl_lightning.callbacks.monitors.friends import FriendAccuracy
from dfl_lightning.callbacks.monitors.neighbours import NeighbourAccuracy
from dfl_lightning.callbacks.monitors.substitutes import SubstitutionError

__all__ = ["FriendAccuracy", "NeighbourAccuracy", "SubstitutionError"]
