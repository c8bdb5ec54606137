"""The process of a cell: `dfl-fit`, from the beginning or from the last checkpoint, under the cell's lock."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import dfl_lightning
from dfl_lightning.bench.study.cells.cell_state import FAILURE, rows_of, runs_of, state_of, write_failure
from dfl_lightning.bench.study.cells.commit import commit_now
from dfl_lightning.bench.study.cells.disk import give_back
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell
from dfl_lightning.bench.study.cells.other_code import set_aside
from dfl_lightning.bench.study.cells.resolve import config_text
from dfl_lightning.bench.study.plan import CONFIG, Cell
from dfl_lightning.bench.study.processes.starting import Start, start_python
from dfl_lightning.cli.ending import ENDING, MISSING_DATA, Ending, read_ending
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.locks import FolderLock

MOST_STARTS = 5
"""Number of starts in a row without a further round after which a cell counts as failed."""

LOG = "log.txt"
"""The file, in a cell's folder, with the output of its processes."""

ENDED = "ending.json"
"""The file, in a cell's folder, with the reason why its last process failed."""

STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a process that was asked to stop."""


class CellProcess:
    """A process that works at a cell.

    The process holds the lock too: if the study is killed, no other study begins with the cell before it has ended.

    Args:
        cell: cell to run.
        threads: threads of the process.
        starts: number of earlier processes that have ended without a further round.
        saved: rounds that were done when the last of these began.
        start: function that starts a process of the cell.

    Attributes:
        starts: number of processes without a further round, this one included.
        saved: rounds that were done when this process began.

    Raises:
        Taken: another study works at the cell.
    """

    def __init__(self, cell: Cell, threads: int, starts: int = 0, saved: int = -1, start: Start = start_python) -> None:
        self.cell, self._threads, self._start_process = cell, threads, start
        self.starts, self.saved = starts, saved
        self._checkpoint: Path | None = None  # to resume from instead of the run's last one
        self._lock = take(cell.folder)
        try:
            if state_of(cell).is_done:  # another study has just finished it
                raise Taken
            self._start()
        except BaseException:
            self._lock.release()
            raise

    def _start(self) -> None:
        """Start the process, from the last checkpoint if there is one."""
        state = state_of(self.cell)
        if state.other_code and state.run is not None:
            set_aside(self.cell, state.run)
            state = state_of(self.cell)
        for file in (FAILURE, ENDED):
            (self.cell.folder / file).unlink(missing_ok=True)
        if state.run is not None:
            words = ["--ckpt_path", str(self._checkpoint or state.run)]
        else:
            for run in runs_of(self.cell):
                shutil.rmtree(run)  # it has no checkpoint, so its rounds are done again
            text = config_text(self.cell.config)
            about = f"# dfl_lightning {dfl_lightning.__version__}, commit {commit_now()}\n"
            write_atomically(self.cell.folder / CONFIG, lambda file: file.write((about + text).encode()))
            root = f"--trainer.default_root_dir={self.cell.folder}"
            words = ["--config", str(self.cell.folder / CONFIG), root]
        saved = 0 if state.run is None else rows_of(state.run)
        self.starts = self.starts + 1 if saved <= self.saved else 1
        self.saved = saved
        environment = {**environment_of_a_cell(self._threads), ENDING: str(self.cell.folder / ENDED)}
        with open(self.cell.folder / LOG, "ab") as log:
            self._process = self._start_process(words, log, environment, self._lock.descriptor)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_over(self, stopping: bool) -> bool:
        """Return True if no process works at the cell any more; start one again that was ended from outside.

        Args:
            stopping: whether the study is being stopped, so that no process is started again.
        """
        code = self._process.poll()
        if code is None:
            return False
        assert self._process.stdin is not None
        self._process.stdin.close()
        state = state_of(self.cell)
        give_back(state, self.cell.keeps_models)
        if not stopping and code != 0 and not state.is_done:
            ending = self._ending(code)
            if ending is None:
                self._start()
                return False
            write_failure(self.cell, ending.sentence, lacks_data=ending.kind == MISSING_DATA)
        self._lock.release()
        return True

    def _ending(self, code: int) -> Ending | None:
        """Return why the process has ended for good; None if it is to be started again."""
        if code > 0 and code not in STOPPED:
            ending = read_ending(self.cell.folder / ENDED)
            if ending is None:
                return Ending(code, f"dfl-fit ended with exit code {code}; {self.cell.folder / LOG} may say why")
            if ending.previous is not None and self._checkpoint is None:
                self._checkpoint = Path(ending.previous)
                return None
            return ending
        if self.starts < MOST_STARTS:
            return None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = " (is the memory too small?)" if code == -signal.SIGKILL else ""
        return Ending(code, f"its process was ended by {name} {self.starts} times without a further round{hint}")

    def stop(self) -> None:
        """Ask the process to save and end."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


class Taken(Exception):
    """Error: another process works at a cell."""


def take(folder: Path) -> FolderLock:
    """Acquire the lock of a cell's folder, which is made if needed.

    Raises:
        Taken: another process holds it.
        UserError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: the cell's folder cannot be made ({error.strerror}); give another with --folder"
        ) from error
    lock = FolderLock()
    try:
        lock.take(folder)
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise Taken from None
    return lock
