"""How the processes of cells are started: each as a new Python, or as a fork of one that has imported the libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import dfl_lightning
from dfl_lightning.bench.study.processes.forks import CHILD, ForkedCell, ForkServer
from dfl_lightning.cli.outcome import say

FORK = "DFL_FORK_CELLS"
"""Environment variable; 0: each cell is a new Python."""

READ_LATE = ("PL_GLOBAL_SEED", "CUDA_VISIBLE_DEVICES")
"""Variables that nothing reads before a run begins; the same holds for all that begin with `DFL_`."""

PERIOD = 0.05
"""Seconds between two looks at a server that imports."""

MOST_SERVERS = 3
"""Servers that may be killed before each cell is a new Python."""

Process = subprocess.Popen[bytes] | ForkedCell
Start = Callable[[Sequence[str], IO[bytes], Mapping[str, str], int | None], Process]
"""Starts the process of a cell: from the words of `dfl-fit`, the log, the variables and the descriptor of a lock."""


def start_python(
    words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
) -> Process:
    """Start a cell as a new Python.

    Args:
        words: of `dfl-fit`.
        log: a file for what it prints.
        environment: its variables.
        lock: descriptor of a lock that it holds too; None: there is none.
    """
    return subprocess.Popen(
        [sys.executable, "-m", CHILD, *words],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,  # Ctrl-C is for the study, which then stops its cells
    )


class Starter:
    """Starts cells as forks of a server where this is possible, and otherwise each as a new Python.

    Forks need Linux. A cell is a new Python too if it would find something else than the server did when it imported
    the libraries: another working folder, other files of dfl_lightning, or another environment, apart from the
    variables that are read later.
    """

    def __init__(self) -> None:
        forks = sys.platform == "linux" and os.environ.get(FORK) != "0"
        self._servers_left = MOST_SERVERS if forks else 0
        self._server: ForkServer | None = None
        self._place = ("", "")

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()

    def is_ready(self, environment: Mapping[str, str]) -> bool:
        """Whether a cell can be started now; not while the server imports. The first call starts the server.

        Args:
            environment: of cells.
        """
        if self._server is not None and self._server.why_lost:
            why, refuses = self._server.why_lost, self._server.refuses
            self._server = None
            if refuses or not self._servers_left:
                self._servers_left = 0
                say("dfl-study", f"note: each further cell imports the libraries, which takes seconds: {why}", 0)
        if self._server is None:
            if not self._servers_left:
                return True
            self._servers_left -= 1
            self._place = _place()
            self._server = ForkServer(environment)
        return not self._server.is_loading()

    def start(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
    ) -> Process:
        """Start a cell.

        Args:
            words: of the command.
            log: what it prints goes here.
            environment: of the process.
            lock: a descriptor that it inherits.
        """
        server = self._server
        if server is not None and self._place == _place() and _same_for_imports(server.environment, environment):
            forked = server.start(words, log, environment, lock)
            if forked is not None:
                return forked
        return start_python(words, log, environment, lock)

    def start_when_ready(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
    ) -> Process:
        """Start a cell, after the server has imported.

        Args:
            words: of the command.
            log: what it prints goes here.
            environment: of the process.
            lock: a descriptor that it inherits.
        """
        while not self.is_ready(environment):
            time.sleep(PERIOD)
        return self.start(words, log, environment, lock)


def _same_for_imports(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two environments differ in variables only that are read late.

    Examples:
        >>> _same_for_imports({"A": "1", "DFL_DATA_ROOT": "data"}, {"A": "1"}), _same_for_imports({"A": "1"}, {})
        (True, False)
    """
    differing = {name for name in {*one, *other} if one.get(name) != other.get(name)}
    return all(name in READ_LATE or name.startswith("DFL_") for name in differing)


def _place() -> tuple[str, str]:
    """The working folder, and something that changes with the files of dfl_lightning."""
    times = [file.stat().st_mtime_ns for file in Path(dfl_lightning.__file__).parent.rglob("*.py")]
    return os.getcwd(), f"{len(times)}:{max(times)}"
