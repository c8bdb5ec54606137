"""The cells of a study, seen from outside; and as forks of the study, which has the libraries loaded already."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from killing.starts import PROC, Fork, leave, print_into

GONE = ("Z", "X")
"""States of processes that have ended."""


def cells_of(study: int) -> list[int]:
    """The processes of a study's cells that are alive: its children with a session of their own.

    Args:
        study: the process of `dfl-study`.
    """
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            state, parent, _, session = stat
            if int(parent) == study and session == entry.name and state not in GONE:
                found.append(int(entry.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Whether a process runs, or waits for something."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in GONE


def _stat(pid: int) -> list[str]:
    """State, parent, group and session of a process; empty where it has just ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []


class CellFork(Fork):
    """What a study needs of `subprocess.Popen`, for a fork that begins `python -m MODULE ...` anew.

    Args:
        command: a Python, `-m`, the module and its words.
        stdin: must be `PIPE`.
        stdout: a file for the output.
        stderr: the same one.
        env: the environment.
        pass_fds: descriptors that it keeps; all other ones are closed.
        start_new_session: must be true.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> None:
        assert stdin == subprocess.PIPE
        assert stdout is stderr
        assert start_new_session
        theirs, ours = os.pipe()
        kept = [os.dup(descriptor) for descriptor in pass_fds]  # a fork closes the study's locks
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        super().__init__(lambda: _become_cell(command, env, (theirs, stdout.fileno()), kept, heard))
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        for descriptor in (theirs, *kept):
            os.close(descriptor)
        self.stdin = os.fdopen(ours, "wb")


def fork_cells() -> None:
    """From now on studies of this process fork their cells."""
    from dfl_lightning.study import cell_process

    module: Any = cell_process
    module.subprocess = SimpleNamespace(Popen=CellFork, PIPE=subprocess.PIPE)


def _become_cell(
    command: Sequence[str], env: Mapping[str, str], files: tuple[int, int], kept: Sequence[int], heard: set[Any]
) -> NoReturn:
    """What a new process would find: its own session, files and handlers, and signals that came meanwhile."""
    os.setsid()
    os.dup2(files[0], 0)
    print_into(files[1])
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:  # that of the list itself
                continue
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    _, dash_m, module, *words = command
    assert dash_m == "-m"
    sys.argv = [str(Path(module)), *words]
    leave(lambda: runpy.run_module(module, run_name="__main__"))
