"""The variables with which cells run: a cell is a run of its own, also inside a SLURM job of several tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dfl_lightning.utils.cores import cores

SLURMS = ("SLURM_", "SLURMD_")
"""How the variables begin by which SLURM makes processes a single run, and by which Lightning requeues it."""


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that say how many threads compute."""


def threads_of_a_cell(jobs: int) -> int:
    """How many threads a cell gets: as many as `OMP_NUM_THREADS` says, else its share of the machine's cores.

    Args:
        jobs: cells at a time.
    """
    asked = os.environ.get(THREADS[0], "").partition(",")[0].strip()  # after a comma: for threads of threads
    return int(asked) if asked.isdecimal() and int(asked) else max(1, cores() // jobs)


def environment_of_a_cell(threads: int) -> dict[str, str]:
    """This process's variables for one of its cells, without SLURM's; numbers of threads that the user has set stay.

    Args:
        threads: of the cell, where the user has set no number.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SLURMS)}
    return {**dict.fromkeys(THREADS, str(threads)), **kept}


@contextmanager
def without_slurm() -> Iterator[None]:
    """This process without SLURM's variables, for what it asks about a cell itself."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SLURMS)}
    try:
        yield
    finally:
        os.environ.update(hidden)
