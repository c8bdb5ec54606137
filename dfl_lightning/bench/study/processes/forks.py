"""The study's side of the fork server: it starts the server, requests forks, and watches them if the server is gone."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

SERVER, CHILD = "dfl_lightning.bench.study.processes.fork_server", "dfl_lightning.bench.study.processes.child"
"""The modules of the server and of a cell's process."""

LOADING = 600.0
"""Seconds in which a server must have imported the libraries."""
ANSWER = 60.0
"""Seconds in which it must answer a request."""
PERIOD = 0.02
"""Seconds between two checks of a process that is waited for."""


class ForkServer:
    """A process that imports the libraries and then starts cells as forks of itself.

    Args:
        environment: variables of the server, which cells inherit.

    Attributes:
        environment: variables of the server.
        why_lost: why the server cannot start cells; empty if it can, or will be able to.
        refuses: whether another server could not start cells either.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.why_lost, self.refuses = "", False
        self._loading, self._until = True, time.monotonic() + LOADING
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the server is lost
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER],
                stdin=theirs.fileno(),
                stdout=self._output,
                stderr=self._output,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for the study
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_loading(self) -> bool:
        """Return True while the server imports the libraries; note if this fails or takes too long."""
        if self._loading and not self.why_lost:
            if select.select([self._socket], [], [], 0)[0]:
                answer = self._receive()
                if answer is not None and answer["obstacle"]:
                    self._lose(answer["obstacle"], refuses=True)
                self._loading = False
            elif time.monotonic() > self._until:
                self._lose(f"a process has not imported them in {LOADING:.0f} seconds", refuses=True)
        return self._loading and not self.why_lost

    def start(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], lock: int | None
    ) -> ForkedCell | None:
        """Start a cell and return its process; None if this server cannot, in which case nothing was started.

        Args:
            words: arguments of `dfl-fit`.
            log: file for the output of the cell.
            environment: variables of the cell.
            lock: descriptor of a lock that the cell holds too; None: there is none.
        """
        if self.is_loading() or self.why_lost:
            return None
        changed = {name: value for name, value in environment.items() if self.environment.get(name) != value}
        without = [name for name in self.environment if name not in environment]
        request = {"module": CHILD, "words": list(words), "environment": changed, "without": without}
        theirs, ours = os.pipe()
        stdin = os.fdopen(ours, "wb", buffering=0)
        try:
            answer = self._ask(request, [theirs, log.fileno(), *([] if lock is None else [lock])])
        finally:
            os.close(theirs)
        if answer is None or "pid" not in answer:
            stdin.close()  # a fork that was started nevertheless ends by this
            return None
        cell = ForkedCell(self, answer["pid"], stdin)
        cell.begin()
        return cell

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a fork, negative for a signal; None while it works, or if this server is lost."""
        answer = self._ask({"pid": pid})
        return None if answer is None else answer["code"]

    def close(self) -> None:
        """End the server, which has nothing to save; cells that still run continue."""
        if not self.why_lost:
            self._lose("the study is over")

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any] | None:
        if self.why_lost:
            return None
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        except OSError:  # the server has ended, or does not read
            self._lose()
            return None
        return self._receive()

    def _receive(self) -> dict[str, Any] | None:
        try:
            message = self._socket.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            self._lose()
            return None
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _lose(self, why: str = "", refuses: bool = False) -> None:
        """Give the server up: kill it, so that it starts no late fork, and record why."""
        self._process.kill()  # it may have ended already
        code = self._process.wait()
        if not why:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._output.seek(0)
            last = (self._output.read().decode(errors="replace").splitlines() or [""])[-1]
            why = f"the process that was to start them has ended by {how}{f' ({last})' if last else ''}"
            refuses = self._loading and code > 0
        self._socket.close()
        self._output.close()
        self.why_lost, self.refuses = why, refuses


class ForkedCell:
    """The process of a cell, with what a study needs of `subprocess.Popen`.

    Its parent is the server. If that is gone, its end shows in its standard input, which has no reader then.

    Args:
        server: the server that has started the cell.
        pid: process id of the cell.
        stdin: the study's end of the cell's standard input.

    Attributes:
        returncode: exit code, negative for a signal; None while the cell works; -SIGKILL if unknown.
    """

    def __init__(self, server: ForkServer, pid: int, stdin: IO[bytes]) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._server = server
        self._input = select.poll()
        self._input.register(stdin.fileno(), 0)

    def begin(self) -> None:
        """Let the cell begin; until then it waits, since the server may be killed before it reports the fork."""
        with suppress(BrokenPipeError):  # the cell was killed
            self.stdin.write(b"\n")

    def poll(self) -> int | None:
        """Return the exit code; None while the cell works."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
            if self.returncode is None and self._server.why_lost and self._input.poll(0):
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self) -> int:
        """Wait until the cell has ended, and return its exit code."""
        while (code := self.poll()) is None:
            time.sleep(PERIOD)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the cell if it still works."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the cell if it still works."""
        self.send_signal(signal.SIGKILL)
