"""Policies and monitors: the callbacks of a communication round."""

from dfl_lightning.callbacks.aggregation import (
    Boltzmann,
    FromTopology,
    Metropolis,
    SampleWeighted,
    ScoreWeighted,
    Uniform,
)
from dfl_lightning.callbacks.dropout import Bernoulli, ExactCount, GroupedCount, Trace
from dfl_lightning.callbacks.families import Aggregation, Dropout, Monitor, Policy, Selection, Substitution, Threshold
from dfl_lightning.callbacks.monitors import FriendAccuracy, NeighbourAccuracy
from dfl_lightning.callbacks.selection import AFIND, IFCA, PANM, PENS, FedeRiCo, Gossip
from dfl_lightning.callbacks.substitution import FDMS, Stale
from dfl_lightning.callbacks.threshold import AdaptiveThreshold

__all__ = [
    "AFIND",
    "FDMS",
    "IFCA",
    "PANM",
    "PENS",
    "AdaptiveThreshold",
    "Aggregation",
    "Bernoulli",
    "Boltzmann",
    "Dropout",
    "ExactCount",
    "FedeRiCo",
    "FriendAccuracy",
    "FromTopology",
    "Gossip",
    "GroupedCount",
    "Metropolis",
    "Monitor",
    "NeighbourAccuracy",
    "Policy",
    "SampleWeighted",
    "ScoreWeighted",
    "Selection",
    "Stale",
    "Substitution",
    "Threshold",
    "Trace",
    "Uniform",
]
