"""How many clients a GPU's memory has room for, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from dfl_lightning.engines.stacked.gpu.footprint import Footprint
from dfl_lightning.utils.memory import size

SHARE = 0.8
"""Of the free memory: a cohort may take so much. The rest is for work spaces of libraries, for memory in pieces and for
what a round holds besides."""

UNFOLDED_SHARE = 0.5
"""The same for a cohort whose convolutions are unfolded: their patches only save time."""

LARGEST_TENSOR = 2**31 - 1
"""Numbers of a tensor at most: many kernels count in 32 bits."""


@dataclass(frozen=True)
class Budget:
    """What fits on a GPU.

    Args:
        footprint: of a client's step.
        room: bytes that are free beside rows and data; None: not known.
    """

    footprint: Footprint
    room: int | None

    @property
    def widest(self) -> int:
        """Clients of a cohort at most, without unfolded convolutions; 1 even where that is too many."""
        widest = LARGEST_TENSOR // self.footprint.longest()
        if self.room is not None:
            widest = min(widest, int(SHARE * self.room // self.footprint.bytes()))
        return max(1, widest)

    def allows(self, unfolded: frozenset[str], clients: int) -> bool:
        """Whether some convolutions can be computed by patches within the memory.

        Args:
            unfolded: names of the convolutions.
            clients: in a cohort.
        """
        if clients * self.footprint.longest(unfolded) > LARGEST_TENSOR:
            return False
        return self.room is None or clients * self.footprint.bytes(unfolded) <= UNFOLDED_SHARE * self.room

    def describe(self, unfolded: frozenset[str], clients: int) -> str:
        """The memory that a cohort is predicted to take, and what is free.

        Args:
            unfolded: names of the convolutions computed by patches.
            clients: in the cohort.
        """
        needed = f"{size(clients * self.footprint.bytes(unfolded))} predicted for the widest cohort"
        free = "" if self.room is None else f" of {size(self.room)} free beside rows and data"
        return needed + free + (f" ({self.footprint.note})" if self.footprint.note else "")
