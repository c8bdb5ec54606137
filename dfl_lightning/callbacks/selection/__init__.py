"""Selection: whom each receiver learns from."""

from dfl_lightning.callbacks.selection.afind import AFIND
from dfl_lightning.callbacks.selection.dpfl import DPFL
from dfl_lightning.callbacks.selection.gossip import Gossip
from dfl_lightning.callbacks.selection.panm import PANM

__all__ = ["AFIND", "DPFL", "PANM", "Gossip"]
