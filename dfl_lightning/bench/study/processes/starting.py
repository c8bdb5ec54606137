"""The start of cells: each as a new Python, or as a fork of a server that has imported the libraries."""

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
"""Variables that are not read before a run begins; the same holds for all that begin with `DFL_`."""

PERIOD = 0.05
"""Seconds between two checks of a server that imports."""

MOST_SERVERS = 3
"""Number of servers that may be lost; after that, each cell is a new Python."""

Process = subprocess.Popen[bytes] | ForkedCell
Start = Callable[[Sequence[str], IO[bytes], Mapping[str, str], int | None], Process]
"""A function that starts a cell, from the arguments of `dfl-fit`, the log, the variables and a lock's descriptor."""


def start_python(
    words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
) -> Process:
    """Start a cell as a new Python.

    Args:
        words: arguments of `dfl-fit`.
        log: file for the output of the cell.
        environment: variables of the cell.
        lock: descriptor of a lock that the cell holds too; None: there is none.
    """
    return subprocess.Popen(
        [sys.executable, "-m", CHILD, *words],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,  # Ctrl-C reaches only the study, which then stops its cells
    )


class Starter:
    """Starter of cells, as forks of a server if possible, otherwise each as a new Python.

    Forks need Linux. A cell is also a new Python if something has changed since the server imported the libraries: the
    working folder, the files of dfl_lightning, or the environment, except for variables that are read later.
    """

    def __init__(self) -> None:
        forks = sys.platform == "linux" and os.environ.get(FORK) != "0"
        self._servers_left = MOST_SERVERS if forks else 0
        self._server: ForkServer | None = None
        self._origin = ("", "")

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()

    def is_ready(self, environment: Mapping[str, str]) -> bool:
        """Return True if a cell can be started now, False while the server imports. The first call starts it."""
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
            self._origin = _import_origin()
            self._server = ForkServer(environment)
        return not self._server.is_loading()

    def start(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
    ) -> Process:
        """Start a cell as a fork if the server can do it now, otherwise as a new Python.

        Args:
            words: arguments of `dfl-fit`.
            log: file for the output of the cell.
            environment: variables of the cell.
            lock: descriptor of a lock that the cell holds too; None: there is none.
        """
        server = self._server
        if (
            server is not None
            and self._origin == _import_origin()
            and _same_for_imports(server.environment, environment)
        ):
            forked = server.start(words, log, environment, lock)
            if forked is not None:
                return forked
        return start_python(words, log, environment, lock)

    def start_when_ready(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None = None
    ) -> Process:
        """Wait until the server has imported the libraries, and start a cell.

        Args:
            words: arguments of `dfl-fit`.
            log: file for the output of the cell.
            environment: variables of the cell.
            lock: descriptor of a lock that the cell holds too; None: there is none.
        """
        while not self.is_ready(environment):
            time.sleep(PERIOD)
        return self.start(words, log, environment, lock)


def _same_for_imports(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return True if two environments differ only in variables that are read late.

    Examples:
        >>> _same_for_imports({"A": "1", "DFL_DATA_ROOT": "data"}, {"A": "1"}), _same_for_imports({"A": "1"}, {})
        (True, False)
    """
    differing = {name for name in {*one, *other} if one.get(name) != other.get(name)}
    return all(name in READ_LATE or name.startswith("DFL_") for name in differing)


def _import_origin() -> tuple[str, str]:
    """Return the working folder, and a text that changes with the files of dfl_lightning."""
    times = [file.stat().st_mtime_ns for file in Path(dfl_lightning.__file__).parent.rglob("*.py")]
    return os.getcwd(), f"{len(times)}:{max(times)}"
