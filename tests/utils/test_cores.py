"""Cores that job systems assign on a machine with 64 cores; the variables of SLURM are from a real job."""

import os

import pytest
import torch
from threads import threads

from dfl_lightning.cli import command, main
from dfl_lightning.utils.cores import cores
from dfl_lightning.utils.thread_pool import keep_to_own_cores

VARIABLES = ("SLURM_", "PBS_", "LSB_", "NCPUS", "NSLOTS", "NHOSTS")

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
TASKS = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}

JOBS = {
    "no job": ({}, 64),
    "sbatch": ({"SLURM_CPUS_ON_NODE": "1"}, 1),
    "sbatch -c4": ({"SLURM_CPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "4"}, 4),
    "sbatch -n2 -c4": ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "4"}, 8),
    "sbatch -n2 -c4, srun": ({**TASKS, "SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "4"}, 4),
    "sbatch -n2, srun": ({**TASKS, "SLURM_CPUS_ON_NODE": "2"}, 2),
    "sbatch -c1, srun, two threads a core": ({**STEP, "SLURM_CPUS_ON_NODE": "2", "SLURM_CPUS_PER_TASK": "1"}, 1),
    "sbatch --exclusive": ({"SLURM_CPUS_ON_NODE": "64"}, 64),
    "salloc": ({"SLURM_CPUS_PER_TASK": "3"}, 3),
    "more than there are": ({"SLURM_CPUS_PER_TASK": "100"}, 64),
    "no number": ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "0"}, 64),
    "OpenPBS": ({"PBS_JOBID": "7", "NCPUS": "6"}, 6),
    "Torque": ({"PBS_JOBID": "7", "PBS_NUM_PPN": "5", "PBS_NP": "10"}, 5),
    "NCPUS of something else": ({"NCPUS": "6"}, 64),
    "LSF": ({"LSB_MCPU_HOSTS": "a 12", "LSB_DJOB_NUMPROC": "12"}, 12),
    "LSF, two machines": ({"LSB_MCPU_HOSTS": "a 12 b 4", "LSB_DJOB_NUMPROC": "16"}, 64),
    "Grid Engine": ({"NSLOTS": "9", "NHOSTS": "1"}, 9),
    "Grid Engine, two machines": ({"NSLOTS": "9", "NHOSTS": "2"}, 64),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """It has 64 cores, and this is no job."""
    for name in os.environ:
        if name.startswith(VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)


@pytest.fixture
def job(monkeypatch):
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


@pytest.mark.parametrize("name", JOBS)
def test_a_process_has_the_cores_of_its_job(job, name):
    variables, expected = JOBS[name]
    job(variables)
    assert cores() == expected


def test_a_confined_job_has_only_its_cores(job, monkeypatch):
    job({"SLURM_CPUS_ON_NODE": "4"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {8, 9}, raising=False)
    assert cores() == 2


def test_processes_share_cores_that_are_not_assigned(job):
    assert cores(processes=3) == 21
    assert cores(processes=100) == 1
    job({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "8", **STEP})
    assert cores(processes=2) == 4
    job({"SLURM_CPUS_PER_TASK": "4", **TASKS})
    assert cores(processes=2) == 4
    job({"SLURM_CPUS_PER_TASK": "1"})
    assert cores(processes=2) == 1


@pytest.mark.parametrize(
    ("variables", "processes", "expected"),
    [
        ({}, 1, 5),
        ({}, 16, 4),
        ({"SLURM_CPUS_ON_NODE": "2"}, 1, 2),
        ({"SLURM_CPUS_ON_NODE": "4"}, 2, 2),
        ({"SLURM_CPUS_ON_NODE": "2", "OMP_NUM_THREADS": "3"}, 2, 5),  # which torch has heeded already
    ],
)
def test_torch_has_no_more_threads_than_its_process_has_cores(job, variables, processes, expected):
    job(variables)
    with threads(5):
        keep_to_own_cores(processes)
        assert torch.get_num_threads() == expected


@pytest.mark.parametrize("name", ["fit", "validate", "test"])
def test_a_command_begins_with_the_threads_of_its_job(job, monkeypatch, name):
    job({"SLURM_CPUS_PER_TASK": "2"})
    found = []
    monkeypatch.setattr(command, "run", lambda name: found.append(torch.get_num_threads()) or 0)
    monkeypatch.setattr(main, "start", lambda name: None)
    monkeypatch.setattr("sys.argv", [f"dfl-{name}", "--config", "afind"])
    with threads(5), pytest.raises(SystemExit):
        getattr(main, name)()
    assert found == [2]
