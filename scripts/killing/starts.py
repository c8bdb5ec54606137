"""Real processes of the commands, each run in a session of its own, and ways to end them from outside."""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

PROC = Path("/proc")
FOLDER = Path(__file__).resolve().parent
COMMANDS = {"fit": "dfl_lightning.cli.main", "study": "dfl_lightning.bench.study.main"}
"""Where the function is that a shell starts, by the command."""
PATIENCE = 600.0
"""Seconds after which a run counts as hanging."""


def seed_and_cold(command: str, about: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options that all ways of killing have.

    Args:
        command: for the usage, such as `kill.py run`.
        about: description.
    """
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=command, description=about, formatter_class=shape)
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default 0")
    parser.add_argument("--cold", action="store_true", help="start new Pythons instead of forks: slower")
    return parser


class Run:
    """A run of a command and all processes of its session.

    Args:
        words: its command line.
        folder: where it works.
        cold: start a new Python; else fork this one, which has the libraries loaded already.
        command: `fit` or `study`.

    Attributes:
        code: exit code of the first process, once it has one.
        spent: its processor seconds so far.
        spoke: when the run has said the first thing, on the monotonic clock.
    """

    def __init__(self, words: Sequence[str], folder: Path, cold: bool = False, command: str = "fit") -> None:
        self.code: int | None = None
        self._text = b""
        self._pipe, theirs = os.pipe()  # not a file: a full disk must not hide what the run says
        os.set_blocking(self._pipe, False)
        self.spent = 0.0
        self.spoke: float | None = None
        if cold:
            started = [sys.executable, str(FOLDER / f"{command}.py"), *words]
            process = subprocess.Popen(started, cwd=folder, stdout=theirs, stderr=theirs, start_new_session=True)
            process.returncode = 0  # this class waits for it
            self.pid = process.pid
        else:
            self.pid = os.fork()
            if self.pid == 0:
                _become(command, words, folder, theirs)
        os.close(theirs)

    def processes(self) -> list[int]:
        """List the living processes of the run, the first one first."""
        return processes_of(self.pid)

    def look(self) -> bool:
        """Read the output; return True if the first process still runs."""
        try:
            while piece := os.read(self._pipe, 1 << 16):
                self._text += piece
                self.spoke = self.spoke or time.monotonic()
        except BlockingIOError:
            pass
        with suppress(OSError):
            user, system = (PROC / str(self.pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
            self.spent = max(self.spent, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self, seconds: float = PATIENCE) -> float:
        """Wait until all processes have ended; kill those that remain.

        Returns:
            Seconds from the call, or from the run's first output if that is later, as a full disk shows at the next
            file. Infinite if killed.
        """
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            if not self.look() and not self.processes():
                return time.monotonic() - max(started, self.spoke or 0.0)
            time.sleep(0.02)
        self.end()
        return float("inf")

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        while self.look():
            time.sleep(0.02)

    @property
    def said(self) -> str:
        """Return the output of all processes so far."""
        return self._text.decode(errors="replace")


def processes_of(session: int) -> list[int]:
    """List the living processes of a session, the one that began it first, then those that it has started."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                state, parent, _, theirs = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has just ended
            if int(theirs) == session and state not in "ZX":
                found.append((int(entry.name) != session, int(parent) != session, int(entry.name)))
    return [pid for *_, pid in sorted(found)]


def send(pid: int, signum: int) -> None:
    """Send a signal to a process, which may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def fill_disk(pid: int, limit: int) -> None:
    """Limit the files of a process to `limit` bytes: further writes fail (`EFBIG`)."""
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))


# --- forks instead of new Pythons: loading the libraries takes several times as long as the run -----------------------
class Fork:
    """A fork with the part of `subprocess.Popen` that is needed.

    Args:
        begin: what it does; it must not return.
    """

    def __init__(self, begin: Callable[[], NoReturn]) -> None:
        self._lock = threading.Lock()
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            begin()

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def send_signal(self, signum: int) -> None:
        """Send a signal if it still runs."""
        if self.poll() is None:
            send(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL if it still runs."""
        self.send_signal(signal.SIGKILL)


class FurtherFork(Fork):
    """A further process of a run, as Lightning's launcher starts it: the same command anew."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> None:
        words = command[3:] if command[1] == "-m" else command[2:]  # a cell of a study is a module
        super().__init__(lambda: _become_further(list(words), env))


def load() -> None:
    """Load what forks will use, which compute with one thread: a fork hangs in a pool of threads that it lacks."""
    import torch
    from lightning.pytorch.strategies.launchers import subprocess_script

    import dfl_lightning.cli.command

    assert dfl_lightning.cli.command
    torch.set_num_threads(1)
    launcher: Any = subprocess_script
    launcher.subprocess = SimpleNamespace(Popen=FurtherFork)
    if threading.active_count() > 1:
        raise RuntimeError(f"a fork would lose threads: {threading.enumerate()}")


def _become(command: str, words: Sequence[str], folder: Path, output: int) -> NoReturn:
    """Turn the fork into the first process of a run, in a session of its own."""
    os.setsid()
    os.chdir(folder)
    print_into(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _run_command(command, words)


def _become_further(words: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    os.environ.clear()
    os.environ.update(env)
    _run_command("fit", words)


def _run_command(command: str, words: Sequence[str]) -> NoReturn:
    sys.argv = [str(FOLDER / f"{command}.py"), *words]
    leave(getattr(importlib.import_module(COMMANDS[command]), command))


def print_into(output: int, errors: int | None = None) -> None:
    """Replace standard output and error of a fork; new objects, since a file may have become a pipe."""
    for descriptor, name, target in ((1, "stdout", output), (2, "stderr", output if errors is None else errors)):
        os.dup2(target, descriptor)
        setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115


def leave(do: Callable[[], object]) -> NoReturn:
    """Do something, and end this process as a Python ends: it must not come back to what it was forked from."""
    code = 1
    try:
        try:
            do()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
