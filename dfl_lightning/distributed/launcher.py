"""Start of the processes of a run on one machine, and detection of processes that have ended.

Lightning's own launcher kills all processes without a message if one dies, and leaves the others waiting for half an
hour if the first one dies. Here the first process reports the cause, and no process outlives another by more than
seconds, wherever it waits.
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
"""Environment variable of the processes that a first process has started; it contains the first one's process id."""
QUIET = "TORCH_CPP_LOG_LEVEL"
"""Environment variable of torch, read on import, that suppresses its long output on a lost connection."""
PERIOD = 0.5
"""Seconds between two checks of a `Watch`."""
GRACE = 5.0
"""Seconds that the first process has to end after another has ended, since it may be writing files."""
GRACE_OF_OTHERS = 2.0
"""Seconds that other processes have to end after the first one has ended; they have nothing to save without it."""
PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl for the signal that a process receives when its parent ends."""


_children: list[subprocess.Popen] = []
"""The processes that this process has started."""


class Launcher(_SubprocessScriptLauncher):
    """A launcher that starts the other processes of this machine and watches them."""

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start the other processes, then call the function in this process, as all processes do."""
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
        """Start the other processes, which inherit that Ctrl-C is ignored.

        A terminal sends Ctrl-C to all processes; they ignore it until they can stop together.
        """
        os.environ[FIRST] = str(os.getpid())
        os.environ.setdefault(QUIET, "ERROR")  # this process reports when another has ended
        in_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
        try:
            super()._call_children_scripts()
        finally:
            if in_main_thread:
                signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


class EndAtOnce:
    """A context in which Ctrl-C ends the process at once, for times when there is nothing to save.

    Python would raise `KeyboardInterrupt` inside the module that is being imported, which may catch and discard it.
    """

    def __enter__(self) -> None:
        self._has_replaced = _has_default_interrupt_handler()
        if self._has_replaced:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        if self._has_replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_default_interrupt_handler() -> bool:
    """Return True if Ctrl-C has Python's default handler, neither ignored nor handled by other code."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


class Watch(threading.Thread):
    """A thread that checks every 0.5 s if another process has ended, and then ends this one if it does not end itself.

    Args:
        lost: function that returns a sentence about the process that has ended; empty if none has.
        leave: function that ends this process; its argument is the sentence of `lost`.
        grace: seconds that this process has to end by itself.
    """

    def __init__(self, lost: Callable[[], str], leave: Callable[[str], None], grace: float) -> None:
        super().__init__(name="watch-of-processes", daemon=True)
        self._lost, self._leave, self._grace = lost, leave, grace

    def run(self) -> None:
        """Poll until another process has ended, then end this one after the grace period."""
        while not self._lost():
            time.sleep(PERIOD)
        time.sleep(self._grace)
        self._leave(self._lost())


def launched_by_another() -> bool:
    """Return True if a first process on this machine has started this one."""
    return int(os.environ.get("LOCAL_RANK", 0)) > 0 and "TORCHELASTIC_RUN_ID" not in os.environ and FIRST in os.environ


def watch_the_first() -> None:
    """Ensure that this process ends when the first process, which has started it, has ended.

    Nothing happens in the first process itself, or if the function is called again. Linux ends this process at once,
    even if it is in code that does not let other threads of Python run.
    """
    is_watching = any(isinstance(thread, Watch) for thread in threading.enumerate())
    if launched_by_another() and not is_watching:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        Watch(lost_parent, lambda how: os._exit(1), GRACE_OF_OTHERS).start()


def lost_parent() -> str:
    """Return a sentence if the first process, which has started this one, has ended; otherwise an empty string."""
    is_alive = not launched_by_another() or os.getppid() == int(os.environ[FIRST])
    return "" if is_alive else "the first process of the run has ended"


def lost_child(seconds: float = 0.0) -> str:
    """Return a sentence about a process started by this one that was killed or has failed; empty if there is none.

    Args:
        seconds: longest time to wait for one; an exchange fails a little before the process has ended.
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
    """Wait for the first process to report the error and to end; return True if it ends in time.

    Args:
        seconds: longest time to wait.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if lost_parent():
            return True
        time.sleep(0.05)
    return False


def _end_children() -> None:
    """Wait for the processes that this one has started, and kill those that do not end."""
    deadline = time.monotonic() + GRACE_OF_OTHERS
    for child in _children:
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if child.poll() is None:
            child.kill()


def end_the_first() -> None:
    """Kill the first process, which has started this one, if it is stuck and does not end."""
    if launched_by_another() and not lost_parent():
        os.kill(int(os.environ[FIRST]), signal.SIGKILL)


def leave(how: object) -> NoReturn:
    """End this process, which cannot end by itself, as it is stuck or waits for a process that has ended.

    Args:
        how: sentence about the process that has ended, or its notice.
    """
    for child in _children:
        if child.poll() is None:
            child.kill()
    notice = notices.told()
    if not launched_by_another():
        sentence = notice.sentence if notice is not None else f"{how}, and this one, which waits for it, ends too"
        print(f"dfl_lightning: {one_line(sentence)}", file=sys.stderr, flush=True)
    os._exit(2 if notice is None else notice.code)
