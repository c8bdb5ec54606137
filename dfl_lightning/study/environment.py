"""The variables with which cells run: a cell is a run of its own, also inside a SLURM job of several tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SLURMS = ("SLURM_", "SLURMD_")
"""How the variables begin by which SLURM makes processes a single run, and by which Lightning requeues it."""


def environment_of_a_cell(threads: int) -> dict[str, str]:
    """This process's variables for one of its cells, without SLURM's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SLURMS)}
    return {**kept, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


@contextmanager
def without_slurm() -> Iterator[None]:
    """This process without SLURM's variables, for what it asks about a cell itself."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SLURMS)}
    try:
        yield
    finally:
        os.environ.update(hidden)
