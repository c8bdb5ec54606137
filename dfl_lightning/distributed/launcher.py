"""The processes of a run on one machine: how they are started, and how the end of one is noticed by the others.

Lightning's own launcher kills all processes without a message when one has died, and leaves the others waiting for half
an hour when the first one has. Here the first process reports what happened, and no process outlives another by more
than seconds, wherever it waits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from dfl_lightning.distributed import notices
from dfl_lightning.utils.errors import one_line
from dfl_lightning.utils.thread_pool import keep_to_own_cores

FIRST = "DFL_FIRST_PROCESS"
"""Environment variable of the processes that a first one has started: its number in the system."""
QUIET = "TORCH_CPP_LOG_LEVEL"
"""Environment variable of torch, read when it is loaded: of a lost connection it would print a page."""
PERIOD = 0.5
"""Seconds between two looks."""
GRACE = 5.0
"""Seconds that the first process has to end after another has ended: it may be writing files."""
GRACE_OF_OTHERS = 2.0
"""The same for the others after the first one has ended: they have nothing to save without it."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when the one that has started it ends."""


_children: list[subprocess.Popen] = []
"""The processes that this one has started."""


class Launcher(_SubprocessScriptLauncher):
    """Starts the other processes of this machine, and watches them."""

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start them, then do in this one what all do."""
        environment = self.cluster_environment
        environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not environment.creates_processes_externally:
            self._call_children_scripts()
            _children[:] = self.procs
            Watch(lost_child, leave, GRACE).start()
            atexit.register(_end_children)
        watch_the_first()
        keep_to_own_cores(self.num_processes)
        return function(*args, **kwargs)

    def _call_children_scripts(self) -> None:
        """Started processes ignore Ctrl-C until they can stop together; a terminal sends it to all of them."""
        os.environ[FIRST] = str(os.getpid())
        os.environ.setdefault(QUIET, "ERROR")  # this process reports when another has ended
        here = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if here else None
        try:
            super()._call_children_scripts()
        finally:
            if here:
                signal.signal(signal.SIGINT, before or signal.SIG_DFL)


class EndAtOnce:
    """Ctrl-C while nothing is worth saving: the system ends the process, whatever it is doing.

    Python would raise `KeyboardInterrupt` inside whatever is being imported, which may swallow it.
    """

    def __enter__(self) -> None:
        self._mine = _python_hears_interrupts()
        if self._mine:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _python_hears_interrupts() -> bool:
    """Whether Ctrl-C has Python's default handler; it may be ignored, or handled by other code."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


class Watch(threading.Thread):
    """Polls every 0.5 s for processes that have ended, and then ends this one if it does not end by itself.

    Args:
        lost: says which process has ended; empty: none.
        leave: ends this process; gets what `lost` has said.
        grace: seconds between the two.
    """

    def __init__(self, lost: Callable[[], str], leave: Callable[[str], None], grace: float) -> None:
        super().__init__(name="watch-of-processes", daemon=True)
        self._lost, self._leave, self._grace = lost, leave, grace

    def run(self) -> None:
        """Until this process ends."""
        while not self._lost():
            time.sleep(PERIOD)
        time.sleep(self._grace)
        self._leave(self._lost())


def launched_by_another() -> bool:
    """Whether a first process, here on this machine, has started this one."""
    return int(os.environ.get("LOCAL_RANK", 0)) > 0 and "TORCHELASTIC_RUN_ID" not in os.environ and FIRST in os.environ


def watch_the_first() -> None:
    """In a process that another has started: end when that one has ended. May be called again.

    Linux does it at once, also where this process is in code that lets no other thread of Python run.
    """
    known = any(isinstance(thread, Watch) for thread in threading.enumerate())
    if launched_by_another() and not known:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        Watch(lost_parent, lambda how: os._exit(1), GRACE_OF_OTHERS).start()


def lost_parent() -> str:
    """A sentence if the process that has started this one has ended; otherwise empty."""
    there = not launched_by_another() or os.getppid() == int(os.environ[FIRST])
    return "" if there else "the first process of the run has ended"


def lost_child(seconds: float = 0.0) -> str:
    """Which of the processes that this one has started was killed or has failed, in words; empty if none.

    Args:
        seconds: to wait for that at most; an exchange fails a little before the process has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        for number, child in enumerate(_children, start=1):
            if child.poll():
                how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
                return f"process {number} of the run has ended ({how})"
        if not _children or time.monotonic() >= deadline:
            return ""
        time.sleep(0.02)


def wait_for_the_first_to_leave(seconds: float = 5.0) -> bool:
    """Whether the first process ends within some seconds, after it has reported the same error.

    Args:
        seconds: to wait.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if lost_parent():
            return True
        time.sleep(0.05)
    return False


def _end_children() -> None:
    """Wait for the processes that this one has started, and kill those that do not end: nothing may stay behind."""
    deadline = time.monotonic() + GRACE_OF_OTHERS
    for child in _children:
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if child.poll() is None:
            child.kill()


def end_the_first() -> None:
    """Kill the process that has started this one, if there is one: it is stuck, and does not leave."""
    if launched_by_another() and not lost_parent():
        os.kill(int(os.environ[FIRST]), signal.SIGKILL)


def leave(how: object) -> NoReturn:
    """End this process, which waits for one that has ended, or is stuck, and cannot end by itself.

    Args:
        how: the other one has ended, in words, or its notice.
    """
    for child in _children:
        if child.poll() is None:
            child.kill()
    told = notices.told()
    if not launched_by_another():
        what = told.sentence if told is not None else f"{how}, and this one, which waits for it, ends too"
        print(f"dfl_lightning: {one_line(what)}", file=sys.stderr, flush=True)
    os._exit(2 if told is None else told.code)
