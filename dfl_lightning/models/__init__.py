"""The papers' networks: plain modules that take input shape and number of classes from the data."""

from dfl_lightning.models.convolutional import CNN4, FEMNISTCNN, MNISTCNN, PENSCNN, LeNet
from dfl_lightning.models.mlp import MLP
from dfl_lightning.models.network import Network
from dfl_lightning.models.resnet import ResNet18

__all__ = ["CNN4", "FEMNISTCNN", "MLP", "MNISTCNN", "PENSCNN", "LeNet", "Network", "ResNet18"]
