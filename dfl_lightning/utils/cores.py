"""The number of cores that this process may use, by the operating system and by the job system.

Some job systems confine jobs to their cores, which the operating system then reports. Others only set variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def cores(processes: int = 1) -> int:
    """Count the cores that a process may use.

    Args:
        processes: number of processes of the run on this machine, which share the cores unless SLURM has given each
            task its own.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usable = min(available, _cores_of_job(os.environ) or available)
    return usable if _tasks_have_their_own(os.environ) else max(1, usable // processes)


def _cores_of_job(environment: Mapping[str, str]) -> int | None:
    """Return the cores of this machine that a job system has given to the job or to this task; None without a job.

    Each variable is documented as a count for this machine, or for a job on one machine: by SchedMD (srun, sbatch),
    Altair (OpenPBS), Adaptive Computing (Torque), IBM (LSF) and for the Grid Engines.
    """

    def number(name: str) -> int | None:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() and int(value) > 0 else None

    of_task, of_machine = number("SLURM_CPUS_PER_TASK"), number("SLURM_CPUS_ON_NODE")
    if of_task or of_machine:  # a batch script, which is not a task, has the cores of all tasks
        return of_task or of_machine if "SLURM_STEP_ID" in environment else of_machine or of_task
    if "PBS_JOBID" in environment:
        return number("NCPUS") or number("PBS_NUM_PPN")
    if len(environment.get("LSB_MCPU_HOSTS", "").split()) == 2:  # one machine and its number of slots
        return number("LSB_DJOB_NUMPROC")
    return number("NSLOTS") if number("NHOSTS") == 1 else None


def _tasks_have_their_own(environment: Mapping[str, str]) -> bool:
    """Return True if this process is one of several tasks that have cores of their own (`srun --cpus-per-task`)."""
    return "SLURM_CPUS_PER_TASK" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1"
