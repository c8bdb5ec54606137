"""How many cores there are: those that the system lets this process use, and of them those that its job was given.

A job system that confines its jobs shows in what the system says; any other only says in variables what it has given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def cores(processes: int = 1) -> int:
    """The cores that a process may use.

    Args:
        processes: of a run on this machine, which share the cores unless SLURM has given each task its own.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usable = min(here, _given(os.environ) or here)
    return usable if _tasks_have_their_own(os.environ) else max(1, usable // processes)


def _given(environment: Mapping[str, str]) -> int | None:
    """The cores of this machine that a job system has given to the job, or to this task of it; None: there is no job.

    Each variable is documented as a count for this machine, or for the job where that has one machine: by SchedMD
    (srun, sbatch), Altair (OpenPBS), Adaptive Computing (Torque), IBM (LSF) and for the Grid Engines.
    """

    def number(name: str) -> int | None:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() and int(value) > 0 else None

    of_task, of_machine = number("SLURM_CPUS_PER_TASK"), number("SLURM_CPUS_ON_NODE")
    if of_task or of_machine:  # a batch script is no task: it has the cores of all of them
        return of_task or of_machine if "SLURM_STEP_ID" in environment else of_machine or of_task
    if "PBS_JOBID" in environment:
        return number("NCPUS") or number("PBS_NUM_PPN")
    if len(environment.get("LSB_MCPU_HOSTS", "").split()) == 2:  # a machine and its slots
        return number("LSB_DJOB_NUMPROC")
    return number("NSLOTS") if number("NHOSTS") == 1 else None


def _tasks_have_their_own(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks for each of which cores were asked for (`srun --cpus-per-task`)."""
    return "SLURM_CPUS_PER_TASK" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1"
