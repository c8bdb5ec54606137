"""Local training rules: what a client does with its own data in a round."""

from dfl_lightning.objectives.base import Batch, Duration, JobContext, Objective, Phase, TrainableModel
from dfl_lightning.objectives.fedprox import FedProx
from dfl_lightning.objectives.gradient_tracking import GradientTracking
from dfl_lightning.objectives.plain import Plain

__all__ = [
    "Batch",
    "Duration",
    "FedProx",
    "GradientTracking",
    "JobContext",
    "Objective",
    "Phase",
    "Plain",
    "TrainableModel",
]
