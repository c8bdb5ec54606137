"""Data sets, partitions that divide them among clients, and the tensors that an engine trains from."""

from dfl_lightning.data.augment import Augment
from dfl_lightning.data.client_data import ClientData
from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import (
    IID,
    Assignment,
    ByWriter,
    ClassCounts,
    Dirichlet,
    FlippedLabels,
    LabelClusters,
    Partition,
    Pathological,
    RotatedClusters,
    Shards,
    SwappedLabelClusters,
)
from dfl_lightning.data.sets.cinic import CINIC10
from dfl_lightning.data.sets.custom import FromDataset
from dfl_lightning.data.sets.digits import Digits
from dfl_lightning.data.sets.femnist import FEMNIST
from dfl_lightning.data.sets.leaf import LEAF
from dfl_lightning.data.sets.series import Series
from dfl_lightning.data.sets.text import Text
from dfl_lightning.data.sets.vectors import Vectors
from dfl_lightning.data.sets.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST
from dfl_lightning.data.source import Source

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CINIC10",
    "FEMNIST",
    "IID",
    "LEAF",
    "MNIST",
    "Assignment",
    "Augment",
    "ByWriter",
    "ClassCounts",
    "ClientData",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedData",
    "FlippedLabels",
    "FromDataset",
    "LabelClusters",
    "Partition",
    "Pathological",
    "RotatedClusters",
    "Series",
    "Shards",
    "Source",
    "SwappedLabelClusters",
    "Text",
    "Vectors",
]
