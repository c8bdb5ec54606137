"""The cells of a study as jobs of a SLURM cluster: one array of submitit's, in which each job runs one cell."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from dfl_lightning.bench.study.cells.cell_process import MOST_STARTS, CellProcess, Taken
from dfl_lightning.bench.study.cells.cell_state import state_of, write_failure
from dfl_lightning.bench.study.cells.environment import threads_of_a_cell
from dfl_lightning.bench.study.plan import Cell
from dfl_lightning.bench.study.processes.slurm_words import PREFIX
from dfl_lightning.utils.cores import cores
from dfl_lightning.utils.errors import UserError

try:
    import submitit
except ImportError as error:
    raise UserError(
        "--slurm: submitit is not installed, which submits the jobs; pip install 'dfl_lightning[cluster]'"
    ) from error

JOBS = "jobs"
"""The folder in a study's where submitit keeps its logs and what a job is to do."""

PERIOD = 0.2
"""Seconds between two looks at a cell's process."""

DELAYS = {"slurm": 90, "local": 30}
"""Seconds before a time limit at which a job is told, for each executor: submitit's own defaults."""

MOST_TIMEOUTS = 100
"""Time limits that a cell may use up; one in which no round ends counts for `MOST_STARTS`."""

LOCAL = ("timeout_min", "gpus_per_node", "signal_delay_s", "setup")
"""Options that submitit's local executor does something with."""

ONE_PROCESS = "a cell is one command on one machine, which starts the processes of trainer.devices itself; leave it out"
INSTEAD = {
    "time": "give --slurm.timeout_min, the minutes of a job",
    "mem": "give --slurm.mem_gb, the memory of a job in GB",
    "array": "the cells are the array; -j says how many may run at once",
    "array_parallelism": "give -j, the number of cells at once",
    "additional_parameters": "give each as an option of its own, as in --slurm.reservation NAME",
    **dict.fromkeys(("nodes", "ntasks", "ntasks_per_node", "tasks_per_node", "map_count"), ONE_PROCESS),
}
"""Options of SLURM's or submitit's that are not for a study, and what to give in their place."""


class CellJob(submitit.helpers.Checkpointable):
    """What a job does: work at one cell until it is done or has failed.

    A job that is stopped by a signal of submitit's (its time limit is near, or another job gets its place) has the
    cell saved, and submitit requeues what `checkpoint` returns.

    Args:
        cell: with an absolute folder.
        threads: of its process; None: as many as the job has cores.
        starts: processes of the cell that have ended without a further round, those of earlier jobs.
        saved: the cell's rounds when the last of them began.
    """

    def __init__(self, cell: Cell, threads: int | None = None, starts: int = 0, saved: int = -1) -> None:
        self.cell, self.threads = cell, threads
        self.starts, self.saved = starts, saved
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._said: list[str | BaseException] = []

    def __call__(self) -> str:
        """Work at the cell; how it has ended, in words.

        Raises:
            UserError: the cell has failed.
        """
        print(f"{self.cell.label}: {self.cell.folder}", flush=True)
        # A signal's handler runs between any two steps of the main thread, which therefore only waits: the thread that
        # works is never met in the middle of starting a process.
        self._worker = threading.Thread(target=self._work)
        self._worker.start()
        self._wait()
        end = self._said[0]
        if isinstance(end, BaseException):
            raise end
        print(f"{self.cell.label}: {end}", flush=True)
        return end

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:  # type: ignore[override]  # as jobs may return
        """Have the cell saved; the job that goes on with it, None where going on is of no use."""
        self._stopping = True
        self._wait()
        state = state_of(self.cell)
        if self.starts >= MOST_STARTS and state.rounds <= self.saved and not state.is_done:
            limits = f"{self.starts} jobs have ended without a further round"
            write_failure(self.cell, f"{limits}; give each more time with --slurm.timeout_min")
            return None
        return submitit.helpers.DelayedSubmission(CellJob(self.cell, self.threads, self.starts, self.saved))

    def _wait(self) -> None:
        while self._worker is not None and self._worker.is_alive():
            time.sleep(PERIOD)

    def _work(self) -> None:
        try:
            self._said.append(self._work_at_the_cell())
        except BaseException as error:  # raised again by the main thread
            self._said.append(error)

    def _work_at_the_cell(self) -> str:
        if self._stopping:
            return "stopped before it began"
        try:
            process = CellProcess(self.cell, self.threads or cores(), self.starts, self.saved)
        except Taken:
            done = state_of(self.cell).is_done
            return "done already" if done else "another process works at it, which this job leaves it to"
        told = False
        while not process.is_over(stopping=self._stopping):
            if self._stopping and not told:
                process.stop()
                told = True
            time.sleep(PERIOD)
        self.starts, self.saved = process.starts, process.saved
        state = state_of(self.cell)
        if state.word == "failed":
            raise UserError(f"{self.cell.label}: {state.why}")
        return state.word

    def __getstate__(self) -> dict[str, Any]:
        """What a job file holds: the cell, not the thread that works at it."""
        return {**self.__dict__, "_stopping": False, "_worker": None, "_said": []}


def submit(cells: Sequence[Cell], folder: Path, name: str, options: Mapping[str, Any], at_once: int | None) -> str:
    """Submit a job for each cell; the jobs' number or numbers.

    Args:
        cells: that are to be trained, one at least.
        folder: of the study.
        name: of the study.
        options: those that begin with `--slurm.`, without it, as `check_options` takes them.
        at_once: jobs that may run at a time; None: as many as submitit's default allows.

    Raises:
        UserError: what submitit or the cluster says when it refuses the jobs.
    """
    here = options.get("executor") == "local"  # where all cells run at once
    threads = threads_of_a_cell(len(cells)) if here else None
    jobs = [CellJob(replace(cell, folder=cell.folder.absolute()), threads) for cell in cells]
    try:
        inside = "SLURM_JOB_ID" in os.environ  # a job's variables would be those of the new ones
        with submitit.helpers.clean_env() if inside else nullcontext():
            submitted = _executor(folder / JOBS, name, options, at_once).submit_array(jobs)
    except Exception as error:  # in the words of submitit or of sbatch
        raise UserError(f"--slurm: the jobs cannot be submitted: {error}") from error
    numbers = list(dict.fromkeys(job.job_id.partition("_")[0] for job in submitted))
    return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def check_options(options: Mapping[str, Any], at_once: int | None) -> None:
    """Refuse what no job could be submitted with, as far as this can be said here.

    Args:
        options: those that begin with `--slurm.`, without it.
        at_once: jobs that may run at a time.

    Raises:
        UserError: the option, and what to give in its place.
    """
    kind = options.get("executor", "slurm")
    if kind not in DELAYS:
        raise UserError(f"--slurm.executor {kind}: it is slurm, or local for processes on this machine")
    for option in options:
        if option in INSTEAD:
            raise UserError(f"{PREFIX}{option}: {INSTEAD[option]}")
        if kind == "local" and option not in (*LOCAL, "executor", "max_num_timeout"):
            raise UserError(f"{PREFIX}{option}: the local executor has only {', '.join(LOCAL)}")
    if kind == "local" and at_once is not None:
        raise UserError(f"-j {at_once}: the local executor starts all cells at once; without --slurm, -j is heeded")
    times = options.get("max_num_timeout", MOST_TIMEOUTS)
    if type(times) is not int or times < 0:
        raise UserError(f"--slurm.max_num_timeout {times}: it is a number of time limits that a cell may use up")
    minutes, delay = options.get("timeout_min"), options.get("signal_delay_s", DELAYS[kind])
    if minutes is None:
        raise UserError("--slurm: give --slurm.timeout_min, the minutes that a job may take; a cell may take several")
    if not _is_number(minutes) or not _is_number(delay) or not 0 < delay < 60 * minutes:
        raise UserError(
            f"--slurm.timeout_min {minutes}: it is a number of minutes, more than the {delay} seconds in which a cell "
            "is saved before the limit (--slurm.signal_delay_s)"
        )
    if kind == "slurm" and submitit.SlurmExecutor.affinity() <= 0:
        raise UserError(
            "--slurm: there is no srun here, so this is no machine of a SLURM cluster; start dfl-study on one, or give "
            "--slurm.executor local"
        )


def _executor(folder: Path, name: str, options: Mapping[str, Any], at_once: int | None) -> Any:
    """Submitit's executor for options that have been checked."""
    rest: dict[str, Any] = dict(options)
    for option in ("setup", "teardown"):  # lines of a shell: one may be given without brackets
        if isinstance(rest.get(option), str):
            rest[option] = [rest[option]]
    kind, times = rest.pop("executor", "slurm"), rest.pop("max_num_timeout", MOST_TIMEOUTS)
    rest.setdefault("signal_delay_s", DELAYS[kind])
    executor: Any
    if kind == "local":
        executor = submitit.LocalExecutor(folder.absolute(), max_num_timeout=times)
        executor.update_parameters(**rest)
        return executor
    executor = submitit.SlurmExecutor(folder.absolute(), max_num_timeout=times)
    rest["time"] = rest.pop("timeout_min")  # as submitit calls them for SLURM
    if "mem_gb" in rest:
        rest["mem"] = f"{rest.pop('mem_gb')}GB"
    of_submitit = executor._valid_parameters()
    given = {key: value for key, value in rest.items() if key in of_submitit}
    others = {key: value for key, value in rest.items() if key not in of_submitit}
    executor.update_parameters(
        **{"job_name": f"dfl-{name}", **given},
        **({"additional_parameters": others} if others else {}),
        **({} if at_once is None else {"array_parallelism": at_once}),
    )
    return executor


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
