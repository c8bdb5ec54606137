"""What the environment says about the processes of a run: numbers, and SLURM's that fit together."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dfl_lightning.errors import UserError

COUNTS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
"""Variables that count something, 1 or more."""

RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""Variables that number something from 0 on."""


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse variables that Lightning reads as numbers and that are none, and tasks of SLURM's that it would refuse.

    Raises:
        UserError: the variable, its value, and what to do.
    """
    for name, least in (*((name, 1) for name in COUNTS), *((name, 0) for name in RANKS), ("MASTER_PORT", 1)):
        value = environment.get(name)
        if value is not None and not (value.isdecimal() and value.isascii() and int(value) >= least):
            raise UserError(
                f"the environment variable {name}={value} is not a whole number from {least} on; unset it, or start "
                "the run with a launcher that sets it, such as torchrun"
            )
    if int(environment.get("MASTER_PORT", 1)) > 65535:
        raise UserError(
            f"the environment variable MASTER_PORT={environment['MASTER_PORT']} is above 65535, the last port"
        )
    _check_slurm(environment)


def _check_slurm(environment: Mapping[str, str]) -> None:
    """Tasks of SLURM's that a run could not have as its processes."""
    tasks = environment.get("SLURM_NTASKS")
    if tasks is None or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return
    one = "for a run of one process, unset SLURM_NTASKS"
    if int(tasks) > 1 and "SLURM_NTASKS_PER_NODE" not in environment:
        raise UserError(
            f"SLURM_NTASKS={tasks}: ask SLURM for the tasks of each machine (--ntasks-per-node), and give as many "
            f"trainer.devices; {one}"
        )
    missing = [name for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID") if name not in environment]
    if missing:
        raise UserError(
            f"SLURM_NTASKS={tasks}, but {missing[0]} is not set: SLURM has not started this process; start it with "
            f"srun; {one}"
        )
