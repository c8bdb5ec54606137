"""Number of clients of a cohort that a GPU's memory allows."""

from __future__ import annotations

from dataclasses import dataclass

from dfl_lightning.engines.stacked.gpu.footprint import Footprint
from dfl_lightning.utils.memory import size

SHARE = 0.8
"""Largest share of the free memory for a cohort. The rest is for work spaces of libraries, for fragmentation, and for
other tensors of a round."""

UNFOLDED_SHARE = 0.5
"""The same share for a cohort with unfolded convolutions; it is smaller, since patches only save time."""

LARGEST_TENSOR = 2**31 - 1
"""Largest size of a tensor, in numbers, since many kernels count in 32 bits."""


@dataclass(frozen=True)
class Budget:
    """Memory of a GPU for cohorts.

    Args:
        footprint: memory of a client's step.
        room: bytes that rows and data leave free; None: not known.
    """

    footprint: Footprint
    room: int | None

    @property
    def widest(self) -> int:
        """Largest number of clients of a cohort without unfolded convolutions; at least 1, even if that is too many."""
        widest = LARGEST_TENSOR // self.footprint.longest()
        if self.room is not None:
            widest = min(widest, int(SHARE * self.room // self.footprint.bytes()))
        return max(1, widest)

    def allows(self, unfolded: frozenset[str], clients: int) -> bool:
        """Return True if there is memory to compute some convolutions by patches.

        Args:
            unfolded: names of the convolutions.
            clients: number of clients of a cohort.
        """
        if clients * self.footprint.longest(unfolded) > LARGEST_TENSOR:
            return False
        return self.room is None or clients * self.footprint.bytes(unfolded) <= UNFOLDED_SHARE * self.room

    def describe(self, unfolded: frozenset[str], clients: int) -> str:
        """Describe the memory that a cohort is predicted to need, and the free memory.

        Args:
            unfolded: names of the convolutions that are computed by patches.
            clients: number of clients of the cohort.
        """
        needed = f"{size(clients * self.footprint.bytes(unfolded))} predicted for the widest cohort"
        free = "" if self.room is None else f" of {size(self.room)} that rows and data leave free"
        return needed + free + (f" ({self.footprint.note})" if self.footprint.note else "")
