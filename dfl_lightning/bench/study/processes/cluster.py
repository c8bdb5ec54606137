"""The cells of a study as jobs of a SLURM cluster: an array by submitit, in which each job runs one cell."""

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
        "--slurm: this needs submitit, which is not installed; pip install 'dfl_lightning[cluster]'"
    ) from error

JOBS = "jobs"
"""The folder, in the study's folder, of submitit's logs and job files."""

PERIOD = 0.2
"""Seconds between two checks of a cell's process."""

DELAYS = {"slurm": 90, "local": 30}
"""Seconds before a time limit at which a job gets a signal, for each executor: submitit's own defaults."""

MOST_TIMEOUTS = 100
"""Time limits that a cell may use up; those without a further round count for `MOST_STARTS` too."""

LOCAL = ("timeout_min", "gpus_per_node", "signal_delay_s", "setup")
"""Options that submitit's local executor uses."""

ONE_PROCESS = "a cell is one command on one machine, which starts the processes of trainer.devices itself; leave it out"
INSTEAD = {
    "time": "give --slurm.timeout_min, the minutes of a job",
    "mem": "give --slurm.mem_gb, the memory of a job in GB",
    "array": "the cells are the array; -j says how many may run at once",
    "array_parallelism": "give -j, the number of cells at once",
    "additional_parameters": "give each as an option of its own, as in --slurm.reservation NAME",
    **dict.fromkeys(("nodes", "ntasks", "ntasks_per_node", "tasks_per_node", "map_count"), ONE_PROCESS),
}
"""Options of SLURM or submitit that a study does not accept, and what to give instead."""


class CellJob(submitit.helpers.Checkpointable):
    """A job that works at one cell until it is done or has failed.

    submitit stops a job by a signal if its time limit is near or another job gets its place. Then the job saves the
    cell, and submitit requeues what `checkpoint` returns.

    Args:
        cell: the cell, with an absolute folder.
        threads: threads of the cell's process; None: as many as the job has cores.
        starts: processes of the cell that have ended without a further round, those of earlier jobs.
        saved: rounds that were done when the last of these began.
    """

    def __init__(self, cell: Cell, threads: int | None = None, starts: int = 0, saved: int = -1) -> None:
        self.cell, self.threads = cell, threads
        self.starts, self.saved = starts, saved
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._results: list[str | BaseException] = []

    def __call__(self) -> str:
        """Run the cell, and return how it has ended, in words.

        Raises:
            UserError: the cell has failed.
        """
        print(f"{self.cell.label}: {self.cell.folder}", flush=True)
        # A signal's handler runs between any two steps of the main thread. So this thread only waits, and another one
        # works: no signal can then interrupt the start of a process.
        self._worker = threading.Thread(target=self._work)
        self._worker.start()
        self._wait()
        end = self._results[0]
        if isinstance(end, BaseException):
            raise end
        print(f"{self.cell.label}: {end}", flush=True)
        return end

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:  # type: ignore[override]  # as jobs may return
        """Save the cell, and return the job that resumes it; None if a further job would be of no use."""
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
            self._results.append(self._work_at_the_cell())
        except BaseException as error:  # raised again by the main thread
            self._results.append(error)

    def _work_at_the_cell(self) -> str:
        if self._stopping:
            return "stopped before it began"
        try:
            process = CellProcess(self.cell, self.threads or cores(), self.starts, self.saved)
        except Taken:
            done = state_of(self.cell).is_done
            return "done already" if done else "another process works at it, which this job leaves it to"
        asked = False
        while not process.is_over(stopping=self._stopping):
            if self._stopping and not asked:
                process.stop()
                asked = True
            time.sleep(PERIOD)
        self.starts, self.saved = process.starts, process.saved
        state = state_of(self.cell)
        if state.word == "failed":
            raise UserError(f"{self.cell.label}: {state.why}")
        return state.word

    def __getstate__(self) -> dict[str, Any]:
        """Return what a job file holds: the cell, but not the thread that works at it."""
        return {**self.__dict__, "_stopping": False, "_worker": None, "_results": []}


def submit(cells: Sequence[Cell], folder: Path, name: str, options: Mapping[str, Any], at_once: int | None) -> str:
    """Send a job for each cell to the cluster, and return the number or the range of numbers of the jobs.

    Args:
        cells: cells to be trained, at least one.
        folder: folder of the study.
        name: name of the study.
        options: options that begin with `--slurm.`, without this prefix, which `check_options` accepts.
        at_once: jobs that may run at a time; None: as many as submitit's default allows.

    Raises:
        UserError: submitit or the cluster refuses the jobs.
    """
    is_local = options.get("executor") == "local"  # all cells run at once on this machine
    threads = threads_of_a_cell(len(cells)) if is_local else None
    jobs = [CellJob(replace(cell, folder=cell.folder.absolute()), threads) for cell in cells]
    try:
        inside = "SLURM_JOB_ID" in os.environ  # the new jobs would inherit the variables of this job
        with submitit.helpers.clean_env() if inside else nullcontext():
            submitted = _executor(folder / JOBS, name, options, at_once).submit_array(jobs)
    except Exception as error:  # submitit and sbatch raise errors of many kinds
        raise UserError(f"--slurm: the jobs cannot be submitted: {error}") from error
    numbers = list(dict.fromkeys(job.job_id.partition("_")[0] for job in submitted))
    return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def check_options(options: Mapping[str, Any], at_once: int | None) -> None:
    """Raise if no job can be submitted with these options.

    Args:
        options: options that begin with `--slurm.`, without this prefix.
        at_once: jobs that may run at a time; None: not given.

    Raises:
        UserError: an option is missing or not allowed; the message says what to give instead.
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
        raise UserError(f"-j {at_once}: the local executor starts all cells at once; leave out -j, or --slurm")
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
            "--slurm: there is no srun here, so this machine is not part of a SLURM cluster; start dfl-study on one "
            "that is, or give --slurm.executor local"
        )


def _executor(folder: Path, name: str, options: Mapping[str, Any], at_once: int | None) -> Any:
    """Create submitit's executor from options that have been checked."""
    rest: dict[str, Any] = dict(options)
    for option in ("setup", "teardown"):  # lists of shell lines; a single one may be given without brackets
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
