"""Local training rules: what a client does with its own data in a round."""

from dfl_lightning.engines.local_work import Batch, Duration, JobContext, Phase, TrainableModel
from dfl_lightning.objectives.fedprox import FedProx
from dfl_lightning.objectives.gradient_tracking import GradientTracking
from dfl_lightning.objectives.local_momentum import LocalMomentum
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.round.objective import Objective

__all__ = [
    "Batch",
    "Duration",
    "FedProx",
    "GradientTracking",
    "JobContext",
    "LocalMomentum",
    "Objective",
    "Phase",
    "Plain",
    "TrainableModel",
]
