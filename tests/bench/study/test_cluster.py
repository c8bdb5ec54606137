"""The cells of a study as jobs of submitit's: on this machine, and on a cluster whose commands are made up."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Forked
from killing.cells import fork_cells

import dfl_lightning.bench.study
from dfl_lightning.bench.study.cells.cell_process import MOST_STARTS
from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.processes.slurm_words import split_options
from dfl_lightning.utils.storage.locks import FolderLock

submitit = pytest.importorskip("submitit")
submitit_main = pytest.importorskip("submitit.core.submission").submitit_main

SLURM = ["--slurm", "--slurm.timeout_min", "240"]
BASE = {
    "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 6, "samples_per_client": 30}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
}


def base_of(rounds):
    trainer = {"max_rounds": rounds, "checkpoint_every": 50, "accelerator": "cpu", "check_val_every_n_epoch": 50}
    return {**BASE, "trainer": trainer}


@pytest.fixture
def one_cell(study_of):
    """Write a study of one cell with a number of rounds; return its plan in a folder."""

    def one_cell(rounds):
        study_of(base=base_of(rounds), columns={"IID": {}}, rows={"Gossip": {}})
        return lambda to="studies/small": make_plan(read_study_file("small.yaml"), Path(to)).distinct()[0]

    return one_cell


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Make a folder with the commands of SLURM: each notes its words in a file of its name."""
    tools = tmp_path / "tools"
    tools.mkdir()
    said = {"sbatch": f"Submitted batch job $((4710 + $(wc -l < {tools}/sbatch.txt)))", "srun": "", "scontrol": ""}
    for name, answer in said.items():
        note = tools / f"{name}.txt"
        copy = f'cp "$1" {tools}/batch.sh\n' if name == "sbatch" else ""
        (tools / name).write_text(f"#!/bin/sh\n{copy}echo $* >> {note}\necho {answer}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools


@pytest.fixture
def job_of(tmp_path):
    """Start what SLURM starts for a job; it is gone when the test is."""
    begun = []

    def job_of(number):
        words = ["submitit.core._submit", str(Path("studies/small/jobs").absolute())]
        logs = tmp_path / f"job-{len(begun)}"
        begun.append(Forked(f"{__file__}:work", words, tmp_path, logs, args=(number,)))
        return begun[-1]

    yield job_of
    for process in begun:
        process.kill()
        process.communicate()


def work(number):
    """Run the work of a job's process with SLURM's variables; its cells are forks of it."""
    tasks = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "1", "SLURM_JOB_NAME": "dfl-small"}
    place = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "1"}
    os.environ.update({**tasks, **place, "SLURM_JOB_ID": str(number), "SUBMITIT_EXECUTOR": "slurm"})
    fork_cells()
    submitit_main()


def until(true, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def started(*words):
    """Run the command in a process of its own, whose jobs outlive it; return what it prints."""
    code = "import sys; from dfl_lightning.bench.study.main import study; sys.argv[0] = 'dfl-study'; study()"
    with open("said.txt", "w") as said:
        subprocess.run([sys.executable, "-c", code, *words], stdout=said, stderr=said, check=True)
    return Path("said.txt").read_text()


@pytest.fixture
def differences(load):
    """List the differences between two cells' runs, times excluded."""
    results = load("killing.results")
    return lambda one, other: list(results.differences(*(results.result(state_of(cell).run) for cell in (one, other))))


# --- what is submitted ------------------------------------------------------------------------------------------------
def test_open_cells_become_one_array_with_the_given_options(study_of, pretend, cluster, capsys):
    study_of()
    cells = make_plan(read_study_file("small.yaml"), Path("studies/small")).distinct()
    pretend(cells[0], 0.5)
    cells[1].folder.mkdir(parents=True)
    lock = FolderLock()
    lock.take(cells[1].folder)  # another process works at it
    given = {"partition": "gpu", "gpus_per_node": 1, "cpus_per_task": 4, "mem_gb": 16, "reservation": "mine"}
    words = [word for name, value in given.items() for word in (f"--slurm.{name}", str(value))]
    assert main(["run", "small.yaml", "--discard-models", *SLURM, *words, "-j", "1"]) == 0
    lock.release()
    batch = (cluster / "batch.sh").read_text()
    for line in (
        *("--array=0-1%1", "--partition=gpu", "--time=240", "--gpus-per-node=1", "--cpus-per-task=4", "--mem=16GB"),
        *("--reservation=mine", "--job-name=dfl-small", "--signal=USR2@90"),
    ):
        assert f"#SBATCH {line}\n" in batch
    assert (cluster / "sbatch.txt").read_text().count("\n") == 1
    out = capsys.readouterr().out
    assert "small: 2 cells submitted, job 4711; 1 running already\n" in out
    assert "logs: studies/small/jobs, and log.txt in the folder of each cell" in out
    assert "dfl-study status small.yaml\n" in out
    assert "dfl-study table small.yaml\n" in out
    assert re.search(
        r"dfl-study run small.yaml --discard-models -j 1 --slurm --slurm.timeout_min 240 --slurm.partition gpu ", out
    )
    submitted = [submitit.SlurmJob("studies/small/jobs", f"4711_{n}").submission().function.cell for n in range(2)]
    assert not any(cell.keeps_models for cell in submitted)
    assert [cell.folder for cell in submitted] == [cell.folder.absolute() for cell in cells[2:]]


def test_nothing_is_submitted_where_nothing_is_open(study_of, pretend, cluster, capsys):
    study_of()
    for cell in make_plan(read_study_file("small.yaml"), Path("studies/small")).distinct():
        pretend(cell, 0.5)
    assert main(["run", "small.yaml", *SLURM]) == 0
    assert capsys.readouterr().out == "small: no cell is open, nothing is submitted\n"
    assert not (cluster / "sbatch.txt").exists()


def test_nested_job_does_not_inherit_slurm_variables(one_cell, cluster, monkeypatch):
    one_cell(1)
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.setenv(name, "4")  # of four tasks: dfl-fit would refuse a run of one
    (cluster / "sbatch").write_text(f"#!/bin/sh\nenv > {cluster}/env.txt\necho Submitted batch job 5\n")
    assert main(["run", "small.yaml", *SLURM]) == 0
    assert not re.findall("^SLURM_", (cluster / "env.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--slurm"], "give --slurm.timeout_min, the minutes that a job may take"),
        (["run", "--slurm.partition", "gpu"], "give --slurm.timeout_min"),
        (["run", "--slurm.partition"], "--slurm.partition: give it a value"),
        (["run", "--slurm.partition", "--slurm"], "--slurm.partition: give it a value"),
        (["run", *SLURM, "--slurm.nodes", "2"], "--slurm.nodes: a cell is one command on one machine"),
        (["run", *SLURM, "--slurm.time=4:00:00"], "--slurm.time: give --slurm.timeout_min"),
        (["run", *SLURM, "--slurm.array_parallelism=4"], "--slurm.array_parallelism: give -j"),
        (["run", *SLURM, "--slurm.executor", "pbs"], "--slurm.executor pbs: it is slurm, or local"),
        (["run", *SLURM, "--slurm.executor=local", "-j", "2"], "-j 2: the local executor starts all cells at once"),
        (["run", *SLURM, "--slurm.executor=local", "--slurm.qos=a"], "--slurm.qos: the local executor has only"),
        (["run", "--slurm.timeout_min", "1"], "more than the 90 seconds in which a cell is saved"),
        (["run", "--slurm.timeout_min", "soon"], "--slurm.timeout_min soon: it is a number of minutes"),
        (["run", *SLURM, "--slurm.max_num_timeout=a"], "--slurm.max_num_timeout a: it is a number of time limits"),
        (["run", *SLURM, "--explain"], "--explain times a few rounds here and submits nothing"),
        (["status", "--slurm.partition", "gpu"], "--slurm.partition: only dfl-study run submits jobs"),
    ],
)
def test_mistakes_are_named_and_nothing_is_submitted(one_cell, cluster, capsys, words, sentence):
    one_cell(1)
    command, *rest = words
    assert main([command, "small.yaml", *rest]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert not (cluster / "sbatch.txt").exists()


def test_error_message_of_the_cluster_is_passed_on(one_cell, cluster, capsys):
    one_cell(1)
    (cluster / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition specified: gpus >&2\nexit 1\n")
    assert main(["run", "small.yaml", *SLURM, "--slurm.partition", "gpus"]) == 2
    assert "invalid partition specified: gpus" in capsys.readouterr().err


def test_missing_slurm_is_reported(one_cell, capsys, monkeypatch, tmp_path):
    one_cell(1)
    monkeypatch.setenv("PATH", str(tmp_path))  # also where this is a cluster
    assert main(["run", "small.yaml", *SLURM]) == 2
    assert "there is no srun here, so this machine is not part of a SLURM cluster" in capsys.readouterr().err


def test_without_submitit_a_sentence_says_what_to_install(one_cell, monkeypatch, capsys):
    one_cell(1)
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.delitem(sys.modules, "dfl_lightning.bench.study.processes.cluster", raising=False)
    monkeypatch.delattr(dfl_lightning.bench.study.processes, "cluster", raising=False)
    assert main(["run", "small.yaml", *SLURM]) == 2
    assert "pip install 'dfl_lightning[cluster]'" in capsys.readouterr().err


def test_values_are_numbers_lists_or_words():
    words = ["--slurm.a=1", "--slurm.b", "0.5", "--slurm.c=[x, y]", "--slurm.d=2026-01-01", "--slurm.e=1:30", "run"]
    assert split_options(words) == (["run"], {"a": 1, "b": 0.5, "c": ["x", "y"], "d": "2026-01-01", "e": "1:30"})


# --- what a job does --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_preempted_job_is_requeued_and_ends_with_equal_bits(one_cell, cluster, job_of, differences, in_this_process):
    """All processes of a job of four tasks get the signal; a second job leaves the cell alone meanwhile."""
    plan = one_cell(100)
    cell = plan()
    for _ in range(2):
        assert main(["run", "small.yaml", *SLURM]) == 0
    first = job_of(4711)
    until(lambda: state_of(cell).rounds > 10)
    run = children_of(first.pid)
    for child in run:
        os.kill(child, signal.SIGSTOP)  # it has rounds left, however busy this machine is
    second = submitit.SlurmJob("studies/small/jobs", "4712").submission().function
    assert second() == "another process works at it, which this job leaves it to"
    for child in run:
        os.kill(child, signal.SIGUSR2)
    first.send_signal(signal.SIGUSR2)
    for child in run:
        os.kill(child, signal.SIGCONT)
    out = "".join(first.communicate(timeout=300))
    assert "this job is preempted" in out
    assert (cluster / "scontrol.txt").read_text() == "requeue 4711\n", out
    state = state_of(cell)
    assert (state.word, state.summary["rounds"]) == ("stopped", state.rounds)
    assert 10 < state.rounds < 100
    again = job_of(4711)
    out = "".join(again.communicate(timeout=300))
    assert again.returncode == 0, out
    assert "Gossip, IID, seed 0: done" in out
    assert len(list((cell.folder / "run").iterdir())) == 1
    with in_this_process():
        assert main(["run", "small.yaml", "--folder", "alone"]) == 0
    assert differences(cell, plan("alone")) == []


@pytest.mark.slow
def test_a_cell_that_fails_says_so_and_its_job_fails(study_of, cluster, job_of, capsys):
    wrong = {"model": {"on_divergence": "stop", "optimizer.lr": 1e30}}
    study_of(base=base_of(4), rows={"Wrong": wrong}, columns={"IID": {}})
    assert main(["run", "small.yaml", *SLURM]) == 0
    job = job_of(4711)
    out = "".join(job.communicate(timeout=300))
    assert job.returncode != 0, out
    capsys.readouterr()
    assert main(["status", "small.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Wrong  ✗"
    assert any(line.startswith("Wrong, IID, seed 0: failed: ") for line in lines)


def test_time_limits_without_a_further_round_end_in_a_sentence(one_cell, pretend):
    from dfl_lightning.bench.study.processes.cluster import CellJob

    cell = one_cell(400)()
    cell.folder.mkdir(parents=True)
    assert CellJob(cell, 1, MOST_STARTS - 1, 0).checkpoint().function.starts == MOST_STARTS - 1
    assert CellJob(cell, 1, MOST_STARTS, 0).checkpoint() is None
    state = state_of(cell)
    assert (state.word, state.why[:44]) == ("failed", "5 jobs have ended without a further round; g")
    run = pretend(cell, status="stopped")  # it has got on since the last of them began
    (run / "metrics.csv").write_text("round\n0\n1\n")
    assert CellJob(cell, 1, MOST_STARTS, 1).checkpoint() is not None


@pytest.mark.slow
def test_local_executor_resumes_after_time_limits_with_equal_bits(one_cell, differences):
    """Submitit's local executor signals 15 seconds before the limit and starts the job again."""
    plan = one_cell(1500)
    cell = plan()
    began = time.monotonic()
    assert main(["run", "small.yaml", "--folder", "alone"]) == 0
    signalled = 0.4 * (time.monotonic() - began)  # in the midst of the rounds
    limits = ["--slurm.timeout_min", f"{(signalled + 15) / 60:.2f}", "--slurm.signal_delay_s", "15"]
    assert "small: 1 cell submitted" in started("run", "small.yaml", "--slurm.executor", "local", *limits)
    until(lambda: state_of(cell).word in ("done", "failed"), 900)
    assert state_of(cell).is_done, state_of(cell).why
    logs = "".join(file.read_text() for file in Path("studies/small/jobs").glob("*_log.*"))
    assert "this job is timed-out" in logs
    assert logs.count("Requeued job") >= 1
    assert len(list((cell.folder / "run").iterdir())) == 1
    assert differences(cell, plan("alone")) == []


@pytest.mark.slow
def test_local_executor_runs_all_cells_and_names_failures(study_of, capsys):
    wrong = {"model": {"on_divergence": "stop", "optimizer.lr": 1e30}}
    study_of(rows={"Gossip": {}, "Local": {"selection.k": 0}, "Wrong": wrong}, columns={"IID": {}})
    words = ["run", "small.yaml", "--slurm.executor", "local", "--slurm.timeout_min", "60"]
    for _ in range(2):  # the second time while they wait or run
        started(*words)
    cells = make_plan(read_study_file("small.yaml"), Path("studies/small")).distinct()
    until(lambda: all(state_of(cell).word in ("done", "failed") for cell in cells))
    until(lambda: len(list(Path("studies/small/jobs").glob("*_result.pkl"))) >= 3)
    assert all(len(list((cell.folder / "run").iterdir())) == 1 for cell in cells if state_of(cell).is_done)
    assert main(["status", "small.yaml"]) == 0
    assert "3 cells in studies/small: 2 done, 1 failed" in capsys.readouterr().out


def children_of(pid):
    """List the processes that a process has started (Linux)."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for file in files for number in file.read_text().split()]
