"""The papers' networks: plain modules that take input shape and number of classes from the data."""

from dfl_lightning.models.convolutional import CNN4, MNISTCNN, LeNet
from dfl_lightning.models.mlp import MLP
from dfl_lightning.models.network import Network

__all__ = ["CNN4", "MLP", "MNISTCNN", "LeNet", "Network"]
