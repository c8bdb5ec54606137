"""Aggregation: how votes become weights."""

from dfl_lightning.callbacks.aggregation.averages import FromTopology, SampleWeighted, Uniform
from dfl_lightning.callbacks.aggregation.balance import BALANCE
from dfl_lightning.callbacks.aggregation.boltzmann import Boltzmann
from dfl_lightning.callbacks.aggregation.choco_mix import CHOCOMix
from dfl_lightning.callbacks.aggregation.clipped_gossip import ClippedGossip
from dfl_lightning.callbacks.aggregation.federico_step import FedeRiCoStep
from dfl_lightning.callbacks.aggregation.first_order import FirstOrder
from dfl_lightning.callbacks.aggregation.geometric_median import GeometricMedian
from dfl_lightning.callbacks.aggregation.krum import Krum, MultiKrum
from dfl_lightning.callbacks.aggregation.masked import MaskedAverage
from dfl_lightning.callbacks.aggregation.metropolis import Metropolis
from dfl_lightning.callbacks.aggregation.push_sum import PushSum
from dfl_lightning.callbacks.aggregation.robust import Median, TrimmedMean
from dfl_lightning.callbacks.aggregation.score_weighted import ScoreWeighted
from dfl_lightning.callbacks.aggregation.similarity_weighted import SimilarityWeighted

__all__ = [
    "BALANCE",
    "Boltzmann",
    "CHOCOMix",
    "ClippedGossip",
    "FedeRiCoStep",
    "FirstOrder",
    "FromTopology",
    "GeometricMedian",
    "Krum",
    "MaskedAverage",
    "Median",
    "Metropolis",
    "MultiKrum",
    "PushSum",
    "SampleWeighted",
    "ScoreWeighted",
    "SimilarityWeighted",
    "TrimmedMean",
    "Uniform",
]
