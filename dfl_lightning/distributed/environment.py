"""Checks of the environment variables that describe the processes of a run, SLURM's included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dfl_lightning.utils.errors import UserError

COUNTS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
"""Variables that contain a count, 1 or more."""

RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""Variables that contain an index, 0 or more."""

LAUNCHED = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR")
"""Variables that launchers set; at least one is set if a launcher has started the processes of several machines."""


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Check the variables that Lightning reads as numbers, and the tasks of SLURM.

    Raises:
        UserError: a variable is not a number in its range, or the tasks of SLURM do not fit a run.
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


def check_launch(devices: Any, num_nodes: Any, environment: Mapping[str, str] = os.environ) -> None:
    """Raise if a launch would wait for processes that are never started, or would do the same run several times.

    Args:
        devices: `trainer.devices`.
        num_nodes: `trainer.num_nodes`.
        environment: environment variables of the process.

    Raises:
        UserError: the run has several machines but no launcher, or a launcher has started several processes for a run
            of one.
    """
    if str(num_nodes) not in ("0", "1") and not any(name in environment for name in LAUNCHED):
        raise UserError(
            f"trainer.num_nodes={num_nodes}: the processes of several machines are started by torchrun or SLURM, and "
            "neither has started this one; leave it out for a run on one machine"
        )
    started = environment.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in environment else "1"
    if _is_slurms(environment):
        started = environment["SLURM_NTASKS"]
    if (str(devices), str(num_nodes)) == ("1", "1") and started != "1":
        raise UserError(
            f"{started} processes were started for a run of one (trainer.devices=1), and each would do all of it; set "
            "trainer.devices to the processes of a machine, and trainer.num_nodes to the machines"
        )


def _is_slurms(environment: Mapping[str, str]) -> bool:
    """Return True if Lightning assumes that SLURM has started this process."""
    return "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def _check_slurm(environment: Mapping[str, str]) -> None:
    """Raise if the tasks of SLURM cannot be the processes of a run."""
    if not _is_slurms(environment):
        return
    tasks = environment["SLURM_NTASKS"]
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
