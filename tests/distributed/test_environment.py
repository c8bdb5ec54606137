"""Variables of launchers: numbers, and tasks of SLURM's that a run can have."""

import pytest

from dfl_lightning import UserError
from dfl_lightning.cli import command as cli
from dfl_lightning.distributed.environment import check_environment, check_launch

SLURM = {"SLURM_NTASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"LOCAL_RANK": "abc"}, "LOCAL_RANK=abc is not a whole number from 0 on; unset it"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1 is not"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK= is not"),
        ({"RANK": "1.5"}, "RANK=1.5 is not"),
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE=x is not a whole number from 1 on"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 is not"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE=² is not"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http is not"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is above 65535"),
        ({"SLURM_NTASKS": "four"}, "SLURM_NTASKS=four is not"),
        ({"SLURM_NTASKS": "4"}, "SLURM_NTASKS=4: ask SLURM for the tasks of each machine (--ntasks-per-node)"),
        ({"SLURM_NTASKS": "1"}, "SLURM_PROCID is not set: SLURM has not started this process; start it with srun"),
        ({**SLURM, "SLURM_NNODES": "a"}, "SLURM_NNODES=a is not"),
    ],
)
def test_an_unusable_variable_is_named_with_the_remedy(environment, sentence):
    with pytest.raises(UserError) as caught:
        check_environment(environment)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LOCAL_RANK": "0", "RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "29500", "MASTER_ADDR": "a"},
        {**SLURM, "SLURM_NTASKS_PER_NODE": "4"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "interactive"},
    ],
)
def test_variables_of_launchers_are_used(environment):
    check_environment(environment)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("devices", "nodes", "environment", "sentence"),
    [
        (1, 2, {}, "trainer.num_nodes=2: the processes of several machines are started by torchrun or SLURM"),
        (1, 1, TORCHRUN, "4 processes were started for a run of one"),
        (1, 1, SLURM, "4 processes were started for a run of one"),
    ],
)
def test_processes_without_a_launcher_and_repeated_runs_are_refused(devices, nodes, environment, sentence):
    with pytest.raises(UserError) as caught:
        check_launch(devices, nodes, environment)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "nodes", "environment"),
    [
        (1, 1, {}),
        (4, 1, {}),
        (1, 1, {"WORLD_SIZE": "4"}),
        (4, 1, TORCHRUN),
        (1, 4, TORCHRUN),
        ("4", "1", SLURM),
        (1, 2, {"NODE_RANK": "0", "MASTER_ADDR": "a"}),
        (1, 1, {**SLURM, "SLURM_JOB_NAME": "bash"}),
    ],
)
def test_a_consistent_launch_is_accepted(devices, nodes, environment):
    check_launch(devices, nodes, environment)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_NTASKS"])
@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_command_checks_the_launch_first(monkeypatch, capsys, name, command):
    monkeypatch.setenv(name, "x")
    assert cli.run(command, ["--config", "afind"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dfl-{command}: the environment variable {name}=x is not a whole number")
