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

LOG = "log.txt"
"""The file that a cell prints into."""

GONE = ("Z", "X")
"""States of processes that have ended."""


def server_of(study: int) -> int | None:
    """Find the process that forks a study's cells; None if there is none.

    Args:
        study: the process of `dfl-study`.
    """
    return next((pid for pid in _children_of(study) if os.path.basename(_file(pid, 0)).startswith("socket:")), None)


def cells_of(study: int) -> list[int]:
    """List the living processes of a study's cells: children of it or of its server, which print into logs.

    Args:
        study: the process of `dfl-study`.
    """
    server = server_of(study)
    found = [*_children_of(study), *([] if server is None else _children_of(server))]
    return sorted(pid for pid in found if os.path.basename(_file(pid, 1)) == LOG)


def _children_of(parent: int) -> list[int]:
    """List the living children with a session of their own."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            state, its_parent, _, session = stat
            if int(its_parent) == parent and session == entry.name and state not in GONE:
                found.append(int(entry.name))
    return found


def _file(pid: int, descriptor: int) -> str:
    """Return the file of a process's descriptor; empty if the process has just ended."""
    try:
        return os.readlink(PROC / str(pid) / "fd" / str(descriptor))
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Return True if a process runs, or waits for something."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in GONE


def _stat(pid: int) -> list[str]:
    """Read state, parent, group and session of a process; empty if it has just ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []


class PythonFork(Fork):
    """A fork that begins `python -m MODULE ...` anew, with the part of `subprocess.Popen` that a study uses.

    Args:
        command: a Python, `-m`, the module and its words.
        stdin: `PIPE`, or a descriptor.
        stdout: a file for the output.
        stderr: the same one.
        env: the environment.
        start_new_session: must be true.
        pass_fds: descriptors that it keeps; all other ones are closed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        start_new_session: bool,
        pass_fds: Sequence[int] = (),
    ) -> None:
        assert stdout is stderr
        assert start_new_session
        theirs, ours = os.pipe() if stdin == subprocess.PIPE else (os.dup(stdin), None)
        kept = [os.dup(descriptor) for descriptor in pass_fds]  # a fork closes the study's locks
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        super().__init__(lambda: _become_python(command, env, (theirs, stdout.fileno()), kept, mask))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (theirs, *kept):
            os.close(descriptor)
        self.stdin = None if ours is None else os.fdopen(ours, "wb")


def fork_cells() -> None:
    """Let studies of this process fork their cells, or the server that forks these.

    A study asks torch how many GPUs there are, after which a fork of it can use none; these cells do not.
    """
    import torch

    from dfl_lightning.bench.study.processes import forks, starting

    torch.cuda._is_in_bad_fork = lambda: False

    modules: list[Any] = [forks, starting]
    for module in modules:
        module.subprocess = SimpleNamespace(Popen=PythonFork, PIPE=subprocess.PIPE)


def _become_python(
    command: Sequence[str], env: Mapping[str, str], files: tuple[int, int], kept: Sequence[int], mask: set[Any]
) -> NoReturn:
    """Turn the fork into a new Python: its own session, files and handlers, and signals that came meanwhile."""
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
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _, dash_m, module, *words = command
    assert dash_m == "-m"
    sys.argv = [str(Path(module)), *words]
    leave(lambda: runpy.run_module(module, run_name="__main__"))
