"""Policies and monitors: the callbacks of a communication round. This is the only list of those that ship."""

from dfl_lightning.callbacks.aggregation.averages import FromTopology, SampleWeighted, Uniform
from dfl_lightning.callbacks.aggregation.boltzmann import Boltzmann
from dfl_lightning.callbacks.aggregation.choco_mix import CHOCOMix
from dfl_lightning.callbacks.aggregation.events.buffered import Buffered
from dfl_lightning.callbacks.aggregation.events.pairwise import Pairwise
from dfl_lightning.callbacks.aggregation.federico_step import FedeRiCoStep
from dfl_lightning.callbacks.aggregation.first_order import FirstOrder
from dfl_lightning.callbacks.aggregation.masked import MaskedAverage
from dfl_lightning.callbacks.aggregation.metropolis import Metropolis
from dfl_lightning.callbacks.aggregation.prototype_average import PrototypeAverage
from dfl_lightning.callbacks.aggregation.push_sum import PushSum
from dfl_lightning.callbacks.aggregation.robust.balance import BALANCE
from dfl_lightning.callbacks.aggregation.robust.clipped_gossip import ClippedGossip
from dfl_lightning.callbacks.aggregation.robust.columns import Median, TrimmedMean
from dfl_lightning.callbacks.aggregation.robust.geometric_median import GeometricMedian
from dfl_lightning.callbacks.aggregation.robust.krum import Krum, MultiKrum
from dfl_lightning.callbacks.aggregation.score_weighted import ScoreWeighted
from dfl_lightning.callbacks.aggregation.similarity_weighted import SimilarityWeighted
from dfl_lightning.callbacks.aggregation.staleness_weighted import StalenessWeighted
from dfl_lightning.callbacks.base import (
    Aggregation,
    Clock,
    Dropout,
    Monitor,
    Outgoing,
    Policy,
    Prediction,
    Selection,
    Substitution,
    Threshold,
)
from dfl_lightning.callbacks.clock.asynchronous import Asynchronous
from dfl_lightning.callbacks.clock.synchronous import Synchronous
from dfl_lightning.callbacks.dropout.markov import Markov
from dfl_lightning.callbacks.dropout.random import Bernoulli, ExactCount, GroupedCount
from dfl_lightning.callbacks.dropout.trace import Trace
from dfl_lightning.callbacks.monitors.collaboration_graph import CollaborationGraph
from dfl_lightning.callbacks.monitors.consensus_distance import ConsensusDistance
from dfl_lightning.callbacks.monitors.fairness import Fairness
from dfl_lightning.callbacks.monitors.friend_accuracy import FriendAccuracy
from dfl_lightning.callbacks.monitors.graph_sparsity import GraphSparsity
from dfl_lightning.callbacks.monitors.link_messages import LinkMessages
from dfl_lightning.callbacks.monitors.merged_model import MergedModel
from dfl_lightning.callbacks.monitors.neighbour_accuracy import NeighbourAccuracy
from dfl_lightning.callbacks.monitors.product_error import ProductError
from dfl_lightning.callbacks.monitors.simulated_time import SimulatedTime
from dfl_lightning.callbacks.monitors.substitution_error import SubstitutionError
from dfl_lightning.callbacks.outgoing.a_little_is_enough import ALittleIsEnough
from dfl_lightning.callbacks.outgoing.choco import CHOCO
from dfl_lightning.callbacks.outgoing.compression import TopK
from dfl_lightning.callbacks.outgoing.noise import GaussianNoise
from dfl_lightning.callbacks.outgoing.noise_attack import NoiseAttack
from dfl_lightning.callbacks.outgoing.qsgd import QSGD
from dfl_lightning.callbacks.outgoing.sign_flip import SignFlip
from dfl_lightning.callbacks.prediction.knn import KNN
from dfl_lightning.callbacks.prediction.mixture import Mixture
from dfl_lightning.callbacks.prediction.nearest_prototype import NearestPrototype
from dfl_lightning.callbacks.selection.afind import AFIND
from dfl_lightning.callbacks.selection.dpfl import DPFL
from dfl_lightning.callbacks.selection.federico import FedeRiCo
from dfl_lightning.callbacks.selection.fedfomo import FedFomo
from dfl_lightning.callbacks.selection.gossip import Gossip
from dfl_lightning.callbacks.selection.ifca import IFCA
from dfl_lightning.callbacks.selection.pacfl import PACFL
from dfl_lightning.callbacks.selection.panm import PANM
from dfl_lightning.callbacks.selection.pens import PENS
from dfl_lightning.callbacks.substitution.fdms import FDMS
from dfl_lightning.callbacks.substitution.stale import Stale
from dfl_lightning.callbacks.threshold.adaptive import AdaptiveThreshold

__all__ = [
    "AFIND",
    "BALANCE",
    "CHOCO",
    "DPFL",
    "FDMS",
    "IFCA",
    "KNN",
    "PACFL",
    "PANM",
    "PENS",
    "QSGD",
    "ALittleIsEnough",
    "AdaptiveThreshold",
    "Aggregation",
    "Asynchronous",
    "Bernoulli",
    "Boltzmann",
    "Buffered",
    "CHOCOMix",
    "ClippedGossip",
    "Clock",
    "CollaborationGraph",
    "ConsensusDistance",
    "Dropout",
    "ExactCount",
    "Fairness",
    "FedFomo",
    "FedeRiCo",
    "FedeRiCoStep",
    "FirstOrder",
    "FriendAccuracy",
    "FromTopology",
    "GaussianNoise",
    "GeometricMedian",
    "Gossip",
    "GraphSparsity",
    "GroupedCount",
    "Krum",
    "LinkMessages",
    "Markov",
    "MaskedAverage",
    "Median",
    "MergedModel",
    "Metropolis",
    "Mixture",
    "Monitor",
    "MultiKrum",
    "NearestPrototype",
    "NeighbourAccuracy",
    "NoiseAttack",
    "Outgoing",
    "Pairwise",
    "Policy",
    "Prediction",
    "ProductError",
    "PrototypeAverage",
    "PushSum",
    "SampleWeighted",
    "ScoreWeighted",
    "Selection",
    "SignFlip",
    "SimilarityWeighted",
    "SimulatedTime",
    "Stale",
    "StalenessWeighted",
    "Substitution",
    "SubstitutionError",
    "Synchronous",
    "Threshold",
    "TopK",
    "Trace",
    "TrimmedMean",
    "Uniform",
]
