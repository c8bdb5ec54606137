"""Local training rules: what a client does with its own data in a round.

What `ctx`, a `JobContext`, offers to a step (in the stacked engine all tensors have a leading dimension of clients):

- `ctx.next_batch()`: the next batch of the client's data, and `ctx.loss(scores, batch)`: the run's own loss of it
- `ctx.model(name)`: the client's model in a declared row set, by default the exchanged one, as a `TrainableModel`:
  `params`, `start`, `grad(batch)`, `features(batch)`, `update(grads)` by its optimizer, `assign(values)` without one
- `ctx.rows(name)`: the client's row of a declared row set, a tensor for each parameter, read only
- `ctx.number(name)`, `ctx.set_number(name, value)`: a number of the client, declared in `numbers`, kept over rounds
- `ctx.lr`: the round's learning rate, and `ctx.inner(a, b)`: each client's inner product over all parameters
"""

from dfl_lightning.engines.local_work import Batch, Duration, JobContext, Phase, TrainableModel, times
from dfl_lightning.objectives.alternating import Alternating
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
    "Alternating",
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
