"""A study's side of the fork server: it is started, asked for forks, and told about by none of them when it is gone."""

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
"""Modules: the server's, and that of a cell's process."""

LOADING = 600.0
"""Seconds in which a server must have imported the libraries."""
ANSWER = 60.0
"""Seconds in which it must answer a request."""
PERIOD = 0.02
"""Seconds between two looks at a process that is waited for."""


class ForkServer:
    """A process that imports the libraries and then starts cells as forks of itself.

    Args:
        environment: its variables, which cells inherit.

    Attributes:
        environment: the same.
        why_lost: why it can start nothing, empty where it can or will.
        refuses: whether another one could start nothing either.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.why_lost, self.refuses = "", False
        self._loading, self._until = True, time.monotonic() + LOADING
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # until it is lost
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SERVER],
                stdin=theirs.fileno(),
                stdout=self._said,
                stderr=self._said,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for the study
            )

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    def is_loading(self) -> bool:
        """Whether it is still importing."""
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
        """Start a cell; None where this server cannot, and then nothing has begun.

        Args:
            words: of `dfl-fit`.
            log: a file for what it prints.
            environment: its variables.
            lock: descriptor of a lock that it holds too; None: there is none.
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
            stdin.close()  # an unknown fork ends by this
            return None
        cell = ForkedCell(self, answer["pid"], stdin)
        cell.begin()
        return cell

    def exit_code(self, pid: int) -> int | None:
        """Of a fork, negative for a signal; None while it works, or where this server is lost."""
        answer = self._ask({"pid": pid})
        return None if answer is None else answer["code"]

    def close(self) -> None:
        """End it, which has nothing to save; cells that still run go on."""
        if not self.why_lost:
            self._lose("the study is over")

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any] | None:
        if self.why_lost:
            return None
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        except OSError:  # it has gone, or does not read
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
        """It is of no use any more: say why, and let no late fork of it begin."""
        self._process.kill()  # if it has not ended by itself
        code = self._process.wait()
        if not why:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._said.seek(0)
            last = (self._said.read().decode(errors="replace").splitlines() or [""])[-1]
            why = f"the process that was to start them has ended by {how}{f' ({last})' if last else ''}"
            refuses = self._loading and code > 0
        self._socket.close()
        self._said.close()
        self.why_lost, self.refuses = why, refuses


class ForkedCell:
    """The process of a cell, with what a study needs of `subprocess.Popen`.

    Its parent is the server. Where that is gone, the cell's end shows in its standard input, which then has no reader.

    Args:
        server: has started it.
        pid: its number in the system.
        stdin: the study's end of its standard input.

    Attributes:
        returncode: its exit code, negative for a signal; None while it works. -SIGKILL where it is unknown.
    """

    def __init__(self, server: ForkServer, pid: int, stdin: IO[bytes]) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._server = server
        self._input = select.poll()
        self._input.register(stdin.fileno(), 0)

    def begin(self) -> None:
        """Let it begin: until then it waits, for the case that its server is killed before it says what it has done."""
        with suppress(BrokenPipeError):  # it was killed
            self.stdin.write(b"\n")

    def poll(self) -> int | None:
        """Its exit code, once it has one."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
            if self.returncode is None and self._server.why_lost and self._input.poll(0):
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self) -> int:
        """Its exit code, when it has one."""
        while (code := self.poll()) is None:
            time.sleep(PERIOD)
        return code

    def send_signal(self, number: int) -> None:
        """If it works still."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """The same with SIGKILL."""
        self.send_signal(signal.SIGKILL)
