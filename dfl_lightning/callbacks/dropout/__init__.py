"""Client dropout: who is up in a round."""

from dfl_lightning.callbacks.dropout.markov import Markov
from dfl_lightning.callbacks.dropout.random import Bernoulli, ExactCount, GroupedCount
from dfl_lightning.callbacks.dropout.trace import Trace

__all__ = ["Bernoulli", "ExactCount", "GroupedCount", "Markov", "Trace"]
