"""Data sets, how they are divided among clients, and the tensors an engine trains from."""

from dfl_lightning.data.client_data import ClientData
from dfl_lightning.data.custom import FromDataset
from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.digits import Digits
from dfl_lightning.data.partitions import (
    IID,
    Assignment,
    Dirichlet,
    LabelClusters,
    Partition,
    Pathological,
    RotatedClusters,
    SwappedLabelClusters,
)
from dfl_lightning.data.source import Source
from dfl_lightning.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "Assignment",
    "ClientData",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedData",
    "FromDataset",
    "LabelClusters",
    "Partition",
    "Pathological",
    "RotatedClusters",
    "Source",
    "SwappedLabelClusters",
]
