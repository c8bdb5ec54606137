"""The environment variables of cells: a cell is a run of its own, also inside a SLURM job of several tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dfl_lightning.utils.cores import cores

SLURMS = ("SLURM_", "SLURMD_")
"""Prefixes of SLURM's variables, which would make cells tasks of one run, and let Lightning requeue it."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables with the number of threads that compute."""


def threads_of_a_cell(jobs: int) -> int:
    """Return the number of threads of a cell: that in `OMP_NUM_THREADS`, else its share of the machine's cores.

    Args:
        jobs: number of cells that run at a time.
    """
    asked = os.environ.get(THREADS[0], "").partition(",")[0].strip()  # a number after a comma is for nested threads
    return int(asked) if asked.isdecimal() and int(asked) else max(1, cores() // jobs)


def environment_of_a_cell(threads: int) -> dict[str, str]:
    """Return this process's variables for one of its cells, without SLURM's and with a number of threads.

    Args:
        threads: number of threads, unless the user has set another one in a variable.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SLURMS)}
    return {**dict.fromkeys(THREADS, str(threads)), **kept}


@contextmanager
def without_slurm() -> Iterator[None]:
    """Hide SLURM's variables from this process, while it resolves or sets up a cell."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(SLURMS)}
    try:
        yield
    finally:
        os.environ.update(hidden)
