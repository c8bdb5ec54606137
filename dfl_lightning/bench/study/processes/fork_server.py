"""The server that is forked for each cell of a study: it has imported the libraries, which takes seconds.

    python -m dfl_lightning.bench.study.processes.fork_server

Its standard input is a socket, from which it reads the study's requests until the study has ended. A fork returns from
`serve` and then does what `python -m dfl_lightning.bench.study.processes.child` would do. Python ends it as it ends any
other process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.study.processes.fork_end import end_fork
from dfl_lightning.cli.loading import loading, own_process

# Why this is not the `forkserver` of `multiprocessing` with a preload, as tried with Python 3.11:
# - If its server is killed, it reports exit code 255 for cells that still run; the study would start them twice. Here a
#   cell's end shows in its standard input then.
# - Its `start` waits until the server has imported the libraries, for seconds, in which the study stops no other cell.
# - It ignores an ImportError of a preloaded module, and each cell then imports in silence. It reports neither threads
#   nor CUDA that imports have started, which a fork would not survive.
# - Its server is in the study's session: Ctrl-C during the import ends it with a traceback on the study's terminal,
#   where all other output of the imports is printed too.
# - It gives the server the variables of the study's process, not those that are chosen for cells, such as threads.
# - Its processes run no exit handlers, and its server outlives a killed study as long as a cell does.
# A session of its own, the log, the lock, seeds and Python's own end would have to be added to a fork of it as they are
# here; what it would replace is `serve` and `exit_code`, and of `forks.py` the start of the server.

PRELOADED = ("dfl_lightning.cli.command", "dfl_lightning.engines.stacked")
"""Modules that import all that a run needs."""

LONGEST = 1 << 18
"""Bytes of the longest request."""


@dataclass(frozen=True)
class Work:
    """The work of a fork.

    Attributes:
        module: module to run, as `python -m` does.
        words: arguments of the module.
        environment: variables that differ from the server's.
        without: variables of the server that the fork must not have.
        descriptors: standard input, the log, and the lock of the cell's folder if there is one.
    """

    module: str
    words: list[str]
    environment: dict[str, str]
    without: list[str]
    descriptors: list[int]


def main() -> None:
    """Import the libraries, report it, and start forks on request; in a fork, run a cell."""
    control = socket.socket(fileno=os.dup(0))  # it is closed when this process ends, not before
    own_process()
    with loading():  # forks do not collect garbage in imported modules, which would copy their memory
        for module in PRELOADED:
            importlib.import_module(module)
        importlib.import_module(PRELOADED[0]).prepare_forks()
    gc.disable()
    sys.stdout.flush()
    sys.stderr.flush()
    printed = os.pread(1, os.fstat(1).st_size, 0)  # the output of the imports; the study reads this file too
    work = serve(control, obstacle())
    if work is None:
        os._exit(0)  # there is nothing to save or to report
    control.close()
    gc.enable()
    become_cell(work, printed)


def obstacle() -> str:
    """Return why this process cannot be forked; empty if it can.

    OpenBLAS starts threads when it is imported, ends them before a fork, and starts them again when it computes. So
    the threads are counted after a first fork.
    """
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    if os.waitpid(pid, 0)[1]:
        return "CUDA is in use once the libraries are imported"
    if len(os.listdir("/proc/self/task")) > 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        return f"importing the libraries starts threads{f' ({names})' if names else ''}"
    return ""


def serve(control: socket.socket, why_not: str) -> Work | None:
    """Start forks on request and report how they ended, until the study has ended.

    Args:
        control: socket to the study, with one message for each request and each answer.
        why_not: why this process cannot start forks, the first message; empty if it can.

    Returns:
        In a fork, its work; in the server, None once the study has ended.
    """
    answer: dict[str, Any] = {"obstacle": why_not}
    while True:
        try:
            control.send(json.dumps(answer).encode())
            message, descriptors, *_ = socket.recv_fds(control, LONGEST, 3)
        except ConnectionError:
            return None
        if not message:
            return None
        request = json.loads(message)
        if "pid" in request:
            answer = {"code": exit_code(request["pid"])}
            continue
        try:
            pid = os.fork()
        except OSError as error:
            pid, answer = -1, {"obstacle": f"no process can be started ({error.strerror})"}
        if pid == 0:
            return Work(**request, descriptors=list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            answer = {"pid": pid}


def exit_code(pid: int) -> int | None:
    """Return the exit code of a fork, negative for a signal; None while it works."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def become_cell(work: Work, printed: bytes) -> None:
    """Turn the fork into a fresh interpreter process in its own session, and run its work.

    Signal handlers, warning filters, the working folder and the numbers of threads are those of a Python that has
    imported the libraries in this environment, since the server has not changed them. Python seeds `random` anew in
    every fork.

    Args:
        work: what the study has requested.
        printed: output of the libraries during their import, which is written to the cell's log.
    """
    import numpy
    import torch

    inherited = set(sys.modules)
    os.setsid()
    stdin, log, *lock = work.descriptors
    for descriptor, standard in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    os.close(stdin)
    os.close(log)
    for descriptor in lock:  # this process holds the lock until it ends; its children do not
        os.set_inheritable(descriptor, False)
    if not os.read(0, 1):  # the study does not know of this fork, and starts the cell in another way
        os._exit(0)
    os.write(2, printed)
    for name in work.without:
        os.environ.pop(name, None)
    os.environ.update(work.environment)
    importlib.invalidate_caches()  # users may have written modules since
    numpy.random.seed()  # all forks would draw the same numbers otherwise
    torch.default_generator.seed()
    sys.argv = [work.module, *work.words]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    try:
        runpy.run_module(work.module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if not isinstance(left.code, int):
            raise
        end_fork(left.code, inherited)


if __name__ == "__main__":
    main()
