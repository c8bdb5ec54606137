"""Lists of links, which a round narrows and sums up for each receiver, and memories of a number for each link."""

from dfl_lightning.links.complete import AllPairs
from dfl_lightning.links.links import Links
from dfl_lightning.links.memory import LinkMemory

__all__ = ["AllPairs", "LinkMemory", "Links"]
