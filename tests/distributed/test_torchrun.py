"""Two torchruns that know each other over the network, as on two machines; here both are this one."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dfl_lightning.checkpoints.io import rounds_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="torchrun and signals of POSIX")]
FIT = Path(__file__).resolve().parents[2] / "scripts" / "killing" / "fit.py"
ROUNDS = 40
WORDS = ["--config", "afind", "--data.num_clients", "12", "--data.samples_per_client", "12", "--trainer.cohorts", "3"]
WORDS += ["--trainer.max_rounds", str(ROUNDS), "--trainer.checkpoint_every", "2"]
PATIENCE = 120  # seconds that a slow machine may take; the default time-out of a lost process is half an hour


class Machines:
    """Both torchruns of a run, each with one process of the run."""

    def __init__(self, folder, *more):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        meet = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]
        words = [*WORDS, "--trainer.accelerator", "cpu", "--trainer.num_nodes", "2", "--trainer.devices", "1", *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.logs = [folder / f"machine{rank}.log" for rank in range(2)]
        self.torchruns = []
        for rank, log in enumerate(self.logs):
            command = [sys.executable, "-m", "torch.distributed.run", f"--node_rank={rank}", *meet, str(FIT), *words]
            with open(log, "w") as file:
                started = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True
                )
            self.torchruns.append(started)

    @property
    def said(self):
        return "\n".join(log.read_text() for log in self.logs)

    def worker(self, machine):
        """The process of the run there."""
        torchrun = self.torchruns[machine].pid
        return int(Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()[0])

    def wait_for_rounds(self, rounds):
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and all(torchrun.poll() is None for torchrun in self.torchruns):
            tables = list(self.folder.glob("runs/*/*/metrics.csv"))
            if tables and tables[0].read_text().count("\n") > rounds:
                return
            time.sleep(0.02)
        pytest.fail(f"not there yet: {self.said}")

    def wait(self):
        return [torchrun.wait(PATIENCE) for torchrun in self.torchruns]

    def last(self):
        [checkpoint] = self.folder.glob("runs/*/*/checkpoints/last.ckpt")
        return checkpoint

    def end(self):
        for torchrun in self.torchruns:
            if torchrun.poll() is None:
                os.killpg(torchrun.pid, signal.SIGKILL)
            torchrun.wait()


@pytest.fixture
def machines(tmp_path):
    """Starts a run on both; whatever happens, they are ended with the test."""
    started = []

    def machines(*more):
        started.append(Machines(tmp_path, *more))
        return started[-1]

    yield machines
    for each in started:
        each.end()


@pytest.fixture(scope="module")
def uninterrupted(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    runs.fit(1, folder, WORDS)
    return runs.contents(folder)


def test_two_machines_make_the_same_run_as_one_process(machines, runs, uninterrupted, tmp_path):
    run = machines()
    assert run.wait() == [0, 0], run.said
    runs.same(uninterrupted, runs.contents(tmp_path))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds torchrun's processes in Linux's /proc")
@pytest.mark.parametrize(
    ("number", "machine", "sentence"),
    [
        (signal.SIGKILL, 0, "another process of the run has ended or cannot be reached"),
        (signal.SIGKILL, 1, "another process of the run has ended or cannot be reached"),
        (signal.SIGTERM, 1, "stopped by SIGTERM after "),
        (signal.SIGINT, 0, "stopped by SIGINT after "),
    ],
    ids=["SIGKILL of the first", "SIGKILL of the other", "SIGTERM to the other", "Ctrl-C to the first"],
)
def test_a_failure_ends_both_machines_and_the_run_resumes(
    machines, runs, uninterrupted, tmp_path, number, machine, sentence
):
    run = machines()
    run.wait_for_rounds(5)
    os.kill(run.worker(machine), number)
    assert all(run.wait()), run.said
    assert sentence in run.said
    assert 4 <= rounds_in(run.last()) < ROUNDS
    again = machines("--ckpt_path", str(run.last()))
    assert again.wait() == [0, 0], again.said
    runs.same(uninterrupted, runs.contents(tmp_path))
