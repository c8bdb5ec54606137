"""Communication graphs as lists of pairs: what a round narrows, remembers, and adds up for each receiver."""

from dfl_lightning.links.complete import AllPairs
from dfl_lightning.links.links import Links
from dfl_lightning.links.memory import LinkMemory

__all__ = ["AllPairs", "LinkMemory", "Links"]
