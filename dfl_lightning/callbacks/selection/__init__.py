"""Selection: whom each receiver learns from."""

from dfl_lightning.callbacks.selection.afind import AFIND
from dfl_lightning.callbacks.selection.dpfl import DPFL
from dfl_lightning.callbacks.selection.gossip import Gossip

__all__ = ["AFIND", "DPFL", "Gossip"]
