"""Policies and monitors: the callbacks of a communication round."""

from dfl_lightning.callbacks.aggregation import (
    Boltzmann,
    FedeRiCoStep,
    FromTopology,
    Median,
    Metropolis,
    SampleWeighted,
    ScoreWeighted,
    TrimmedMean,
    Uniform,
)
from dfl_lightning.callbacks.base import (
    Aggregation,
    Dropout,
    Monitor,
    Outgoing,
    Policy,
    Prediction,
    Selection,
    Substitution,
    Threshold,
)
from dfl_lightning.callbacks.dropout import Bernoulli, ExactCount, GroupedCount, Markov, Trace
from dfl_lightning.callbacks.monitors import (
    Fairness,
    FriendAccuracy,
    GraphSparsity,
    LinkMessages,
    NeighbourAccuracy,
    SimulatedTime,
    SubstitutionError,
)
from dfl_lightning.callbacks.outgoing import GaussianNoise, SignFlip, TopK
from dfl_lightning.callbacks.prediction import KNN, Mixture
from dfl_lightning.callbacks.selection import AFIND, DPFL, IFCA, PANM, PENS, FedeRiCo, Gossip
from dfl_lightning.callbacks.substitution import FDMS, Stale
from dfl_lightning.callbacks.threshold import AdaptiveThreshold

__all__ = [
    "AFIND",
    "DPFL",
    "FDMS",
    "IFCA",
    "KNN",
    "PANM",
    "PENS",
    "AdaptiveThreshold",
    "Aggregation",
    "Bernoulli",
    "Boltzmann",
    "Dropout",
    "ExactCount",
    "Fairness",
    "FedeRiCo",
    "FedeRiCoStep",
    "FriendAccuracy",
    "FromTopology",
    "GaussianNoise",
    "Gossip",
    "GraphSparsity",
    "GroupedCount",
    "LinkMessages",
    "Markov",
    "Median",
    "Metropolis",
    "Mixture",
    "Monitor",
    "NeighbourAccuracy",
    "Outgoing",
    "Policy",
    "Prediction",
    "SampleWeighted",
    "ScoreWeighted",
    "Selection",
    "SignFlip",
    "SimulatedTime",
    "Stale",
    "Substitution",
    "SubstitutionError",
    "Threshold",
    "TopK",
    "Trace",
    "TrimmedMean",
    "Uniform",
]
