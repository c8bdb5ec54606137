"""How images are divided among clients."""

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.data.partitions.clusters import LabelClusters, RotatedClusters, SwappedLabelClusters
from dfl_lightning.data.partitions.dirichlet import Dirichlet
from dfl_lightning.data.partitions.given import GivenParts
from dfl_lightning.data.partitions.iid import IID
from dfl_lightning.data.partitions.pathological import Pathological

__all__ = [
    "IID",
    "Assignment",
    "Dirichlet",
    "GivenParts",
    "LabelClusters",
    "Partition",
    "Pathological",
    "RotatedClusters",
    "SwappedLabelClusters",
]
