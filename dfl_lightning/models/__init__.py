"""Networks of the papers, and some for text, series and tables, whose input and output sizes follow from the data."""

from dfl_lightning.models.char_lstm import CharLSTM
from dfl_lightning.models.char_transformer import CharTransformer
from dfl_lightning.models.convolutional import CNN4, FEMNISTCNN, MNISTCNN, PENSCNN, LeNet
from dfl_lightning.models.hugging_face import HuggingFace
from dfl_lightning.models.lora import LoRA
from dfl_lightning.models.mlp import MLP
from dfl_lightning.models.network import Network
from dfl_lightning.models.resnet import ResNet18
from dfl_lightning.models.tabular import Tabular
from dfl_lightning.models.tcn import TCN

__all__ = [
    "CNN4",
    "FEMNISTCNN",
    "MLP",
    "MNISTCNN",
    "PENSCNN",
    "TCN",
    "CharLSTM",
    "CharTransformer",
    "HuggingFace",
    "LeNet",
    "LoRA",
    "Network",
    "ResNet18",
    "Tabular",
]
