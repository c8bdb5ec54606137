"""The process of a cell: `dfl-fit`, from the beginning or from the last checkpoint, under the cell's lock."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import dfl_lightning
from dfl_lightning.checkpoints.names import FOLDER, PREVIOUS
from dfl_lightning.study.cell_state import FAILURE, rows_of, runs_of, state_of, write_failure
from dfl_lightning.study.commit import commit_now
from dfl_lightning.study.disk import give_back
from dfl_lightning.study.environment import environment_of_a_cell
from dfl_lightning.study.plan import CONFIG, Cell
from dfl_lightning.study.resolve import config_text
from dfl_lightning.study.starting import Start, start_python
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.files import write_atomically
from dfl_lightning.utils.locks import FolderLock

MOST_STARTS = 5
"""Starts of a cell without a further round, after which it counts as failed."""

LOG = "log.txt"
"""What the processes of a cell have printed."""

STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a process that was asked to stop."""


class CellProcess:
    """A process that works at a cell.

    The lock is the process's too: where the study is killed, nobody else begins with the cell before this has ended.

    Args:
        cell: what to work at.
        threads: of its own.
        starts: processes before this one that have ended without a further round.
        saved: the cell's rounds when the last of them began.
        start: starts processes of the cell.

    Attributes:
        starts: with this process.
        saved: the cell's rounds when this process began.

    Raises:
        Taken: another study works at the cell.
    """

    def __init__(self, cell: Cell, threads: int, starts: int = 0, saved: int = -1, start: Start = start_python) -> None:
        self.cell, self._threads, self._start_process = cell, threads, start
        self.starts, self.saved = starts, saved
        self._previous = False
        self._lock = take(cell.folder)
        try:
            if state_of(cell).is_done:  # by somebody who has just let go of it
                raise Taken
            self._start()
        except BaseException:
            self._lock.release()
            raise

    def _start(self) -> None:
        """Start it, from the last checkpoint where there is one."""
        state = state_of(self.cell)
        (self.cell.folder / FAILURE).unlink(missing_ok=True)
        if state.run is not None:
            words = ["--ckpt_path", str(state.run / FOLDER / PREVIOUS if self._previous else state.run)]
        else:
            for run in runs_of(self.cell):
                shutil.rmtree(run)  # it has no checkpoint: its rounds are done again
            text = config_text(self.cell.config)
            about = f"# dfl_lightning {dfl_lightning.__version__}, commit {commit_now()}\n"
            write_atomically(self.cell.folder / CONFIG, lambda file: file.write((about + text).encode()))
            root = f"--trainer.default_root_dir={self.cell.folder}"
            words = ["--config", str(self.cell.folder / CONFIG), root]
        saved = 0 if state.run is None else rows_of(state.run)
        self.starts = self.starts + 1 if saved <= self.saved else 1
        self.saved = saved
        environment = environment_of_a_cell(self._threads)
        with open(self.cell.folder / LOG, "ab") as log:
            self._began = log.tell()
            self._process = self._start_process(words, log, environment, self._lock.descriptor)

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    def is_over(self, stopping: bool) -> bool:
        """Whether nothing works at the cell any more; a process that was ended from outside is started again.

        Args:
            stopping: whether the study is being stopped, and nothing is to be started again.
        """
        code = self._process.poll()
        if code is None:
            return False
        assert self._process.stdin is not None
        self._process.stdin.close()
        state = state_of(self.cell)
        give_back(state, self.cell.keeps_models)
        if not stopping and code != 0 and not state.is_done:
            why = self._why(code)
            if not why:
                self._start()
                return False
            write_failure(self.cell, why)
        self._lock.release()
        return True

    def _why(self, code: int) -> str:
        """Why it has ended for good; empty where it may go on."""
        if code > 0 and code not in STOPPED:
            sentence = last_sentence(self.cell.folder / LOG, self._began)
            if PREVIOUS in sentence and not self._previous:
                self._previous = True
                return ""
            return sentence or f"dfl-fit leaves with {code}; {self.cell.folder / LOG} may say why"
        if self.starts < MOST_STARTS:
            return ""
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = " (is the memory too small?)" if code == -signal.SIGKILL else ""
        return f"its process was ended by {name} {self.starts} times without a further round{hint}"

    def stop(self) -> None:
        """Ask it to save and leave."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class Taken(Exception):
    """Another process works at a cell."""


def take(folder: Path) -> FolderLock:
    """The lock of a cell.

    Raises:
        Taken: another one has it.
        UserError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: the cell's folder cannot be made ({error.strerror}); --to names another") from error
    lock = FolderLock()
    try:
        lock.take(folder)
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise Taken from None
    return lock


def last_sentence(log: Path, began: int) -> str:
    """The last sentence of `dfl-fit` in a log, without the command's name; empty if there is none.

    Args:
        log: standard error of the cell's runs.
        began: position in bytes at which the present run's part begins.
    """
    try:
        with open(log, "rb") as file:
            file.seek(began)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.removeprefix("dfl-fit: ") for line in lines if line.startswith("dfl-fit: ")]
    return next((line for line in reversed(said) if not line.startswith("warning: ")), "")
