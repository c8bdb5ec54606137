"""Data sets, how they are divided among clients, and the tensors an engine trains from."""

from dfl_lightning.data.cinic import CINIC10
from dfl_lightning.data.client_data import ClientData
from dfl_lightning.data.custom import FromDataset
from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.digits import Digits
from dfl_lightning.data.femnist import FEMNIST
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
from dfl_lightning.data.series import Series
from dfl_lightning.data.source import Source
from dfl_lightning.data.text import Text
from dfl_lightning.data.vectors import Vectors
from dfl_lightning.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CINIC10",
    "FEMNIST",
    "IID",
    "MNIST",
    "Assignment",
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
