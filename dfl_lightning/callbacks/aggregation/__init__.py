"""Aggregation: how votes become weights."""

from dfl_lightning.callbacks.aggregation.averages import FromTopology, SampleWeighted, Uniform
from dfl_lightning.callbacks.aggregation.boltzmann import Boltzmann

__all__ = ["Boltzmann", "FromTopology", "SampleWeighted", "Uniform"]
