"""A study on a real SLURM, of this machine only: arrays, the cores of a job, a time limit and requeueing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loopback_slurm import loopback_slurm, missing

from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan

pytest.importorskip("submitit")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"no {', '.join(missing())} here; on Debian: slurm-wlm and munge"),
]

CORES = len(os.sched_getaffinity(0))
WAITING = """
import time
from pathlib import Path

from dfl_lightning.callbacks import Monitor


class Waiting(Monitor):
    def on_round_end(self, round):
        if Path("waiting").exists():
            time.sleep(1.0)
"""


@pytest.fixture(scope="module", autouse=True)
def slurm():
    """Let SLURM decide the number of threads instead of the test worker."""
    with pytest.MonkeyPatch.context() as patch, loopback_slurm():
        patch.delenv("OMP_NUM_THREADS", raising=False)
        yield


@pytest.fixture
def study(study_of):
    """Write a study of cells of four cohorts with a number of rounds each; return a function that lists them."""

    def study(rounds, rows=("Gossip",), **base):
        trainer = {"max_rounds": rounds, "accelerator": "cpu", "cohorts": 4, "check_val_every_n_epoch": rounds}
        network = {"class_path": "MLP", "init_args": {"hidden": [4]}}
        data = {"class_path": "Digits", "init_args": {"num_clients": 8, "samples_per_client": 30}}
        model = {"network": network, "local_epochs": 1}
        selections = {"Gossip": {}, "Local": {"selection.k": 0}}
        study_of(
            base={"trainer": trainer, "model": model, "data": data, "selection": "Gossip", **base},
            rows={row: selections[row] for row in rows},
            columns={"IID": {}},
        )
        return lambda to="studies/small": make_plan(read_study_file("small.yaml"), Path(to)).distinct()

    return study


def until(true, seconds=600):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, subprocess.run(["scontrol", "show", "jobs"], capture_output=True, text=True)
        time.sleep(0.5)


def threads_of(run):
    return json.loads((run / "summary.json").read_text())["engine"]["threads"]


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ((), 1),  # SLURM's default
        (("--slurm.cpus_per_task", "1"), 1),
        (("--slurm.cpus_per_task", "2"), 2),
    ],
    ids=["default", "one", "two"],
)
def test_cells_of_an_array_have_the_requested_threads(study, options, threads):
    if threads > CORES:
        pytest.skip("this machine has one core")
    cells = study(2, rows=("Gossip", "Local"))
    assert main(["run", "small.yaml", "--slurm", "--slurm.timeout_min", "30", *options]) == 0
    until(lambda: all(state_of(cell).word in ("done", "failed") for cell in cells()))
    assert [state_of(cell).word for cell in cells()] == ["done", "done"], [state_of(cell).why for cell in cells()]
    assert [threads_of(state_of(cell).run) for cell in cells()] == [threads, threads]


@pytest.mark.parametrize("words", ["-n1 -c1", "--ntasks-per-node=2 -n2 -c1"], ids=["one process", "two processes"])
def test_a_run_has_the_threads_of_its_tasks(tmp_path, words):
    processes = int(words.count("-n2")) + 1
    if processes > CORES:
        pytest.skip("this machine has one core")
    code = "from dfl_lightning.cli.main import fit; fit()"
    given = {"max_rounds": 2, "accelerator": "cpu", "cohorts": 4, "devices": processes, "default_root_dir": tmp_path}
    options = [f"--trainer.{name}={value}" for name, value in given.items()]
    command = ["srun", *words.split(), sys.executable, "-c", code, "--config", "afind", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (summary,) = tmp_path.glob("afind/*/summary.json")
    assert threads_of(summary.parent) == 1


def test_time_limit_requeues_a_cell_which_ends_with_equal_bits(study, load, tmp_path):
    """SLURM signals a minute and a half at most after the start, during which each round of the cell takes a second."""
    (tmp_path / "mine.py").write_text(WAITING)
    cells = study(300, monitors=["mine.Waiting"])
    assert main(["run", "small.yaml", "--folder", "alone", "-j", str(CORES)]) == 0  # on one thread, as the job
    waiting = tmp_path / "waiting"
    waiting.touch()
    limits = ["--slurm.timeout_min", "2", "--slurm.signal_delay_s", "30", "--slurm.cpus_per_task", "1"]
    assert main(["run", "small.yaml", "--slurm", *limits]) == 0
    (cell,) = cells()
    until(lambda: state_of(cell).word in ("stopped", "done", "failed"))
    assert state_of(cell).word == "stopped"
    assert 0 < state_of(cell).rounds < 300
    waiting.unlink()
    until(lambda: state_of(cell).word in ("done", "failed"))
    assert state_of(cell).is_done, state_of(cell).why
    logs = "".join(file.read_text() for file in Path("studies/small/jobs").glob("*_log.*"))
    assert "this job is timed-out" in logs
    results = load("killing.results")
    (alone,) = cells("alone")
    assert list(results.differences(*(results.result(state_of(each).run) for each in (cell, alone)))) == []
