"""Selection: the clients that each receiver learns from."""

from dfl_lightning.callbacks.selection.afind import AFIND
from dfl_lightning.callbacks.selection.dpfl import DPFL
from dfl_lightning.callbacks.selection.federico import FedeRiCo
from dfl_lightning.callbacks.selection.fedfomo import FedFomo
from dfl_lightning.callbacks.selection.gossip import Gossip
from dfl_lightning.callbacks.selection.ifca import IFCA
from dfl_lightning.callbacks.selection.pacfl import PACFL
from dfl_lightning.callbacks.selection.panm import PANM
from dfl_lightning.callbacks.selection.pens import PENS

__all__ = [
    "AFIND",
    "DPFL",
    "IFCA",
    "PACFL",
    "PANM",
    "PENS",
    "FedFomo",
    "FedeRiCo",
    "Gossip",
]
