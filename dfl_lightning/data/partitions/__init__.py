"""Partitions, which divide the samples of a data set among the clients."""

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.data.partitions.clusters import (
    LabelClusters,
    RotatedClusters,
    SwappedLabelClusters,
)
from dfl_lightning.data.partitions.counts import ClassCounts
from dfl_lightning.data.partitions.dirichlet import Dirichlet
from dfl_lightning.data.partitions.flipped import FlippedLabels
from dfl_lightning.data.partitions.given import GivenParts
from dfl_lightning.data.partitions.iid import IID
from dfl_lightning.data.partitions.pathological import Pathological
from dfl_lightning.data.partitions.shards import Shards
from dfl_lightning.data.partitions.writers import ByWriter

__all__ = [
    "IID",
    "Assignment",
    "ByWriter",
    "ClassCounts",
    "Dirichlet",
    "FlippedLabels",
    "GivenParts",
    "LabelClusters",
    "Partition",
    "Pathological",
    "RotatedClusters",
    "Shards",
    "SwappedLabelClusters",
]
