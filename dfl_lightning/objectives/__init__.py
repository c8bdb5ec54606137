"""Local training rules: what a client does with its own data in a round."""

from dfl_lightning.engines.local_work import Batch, Duration, JobContext, Phase, TrainableModel, times
from dfl_lightning.objectives.apfl import APFL
from dfl_lightning.objectives.dfedsam import DFedSAM
from dfl_lightning.objectives.dispfl import DisPFL
from dfl_lightning.objectives.ditto import Ditto
from dfl_lightning.objectives.fedproto import FedProto
from dfl_lightning.objectives.fedprox import FedProx
from dfl_lightning.objectives.moon import MOON
from dfl_lightning.objectives.per_fedavg import PerFedAvg
from dfl_lightning.objectives.personal_layers import FedPer, FedRep
from dfl_lightning.objectives.pfedgraph import PFedGraph
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.objectives.tracking.d2 import D2
from dfl_lightning.objectives.tracking.gradient_tracking import GradientTracking
from dfl_lightning.objectives.tracking.qg_dsgdm import QGDSGDm
from dfl_lightning.round.objective import Objective

__all__ = [
    "APFL",
    "D2",
    "MOON",
    "Batch",
    "DFedSAM",
    "DisPFL",
    "Ditto",
    "Duration",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "GradientTracking",
    "JobContext",
    "Objective",
    "PFedGraph",
    "PerFedAvg",
    "Phase",
    "Plain",
    "QGDSGDm",
    "TrainableModel",
    "times",
]
