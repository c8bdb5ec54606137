"""Real processes that need no seconds to import torch: forks of one that has imported everything, and done nothing."""

import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import warnings
from pathlib import Path

from killing.starts import leave, print_into

from dfl_lightning.bench.study.processes.fork_server import PRELOADED


def context():
    """Python's own server of forks: it is clean of threads, of devices and of what this process has done."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(PRELOADED))
    return found


def function_of(place):
    """Return the function that `module:name` or `file.py:name` names."""
    where, _, name = place.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), name)
    spec = importlib.util.spec_from_file_location("of_a_test", where)
    module = sys.modules["of_a_test"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


class Forked:
    """A command with a folder, files and signals of its own, and what tests need of `subprocess.Popen`.

    Args:
        place: the command as `module:name` or `file.py:name`.
        words: its command line, the program's name included.
        folder: in which it works.
        logs: what it prints is in files of that name with `.out` and `.err` at the end; default: next to the folder.
        args: of the function.
    """

    def __init__(self, place, words, folder, logs=None, args=()):
        self._files = [f"{logs or folder}.{name}" for name in ("out", "err")]
        what = (place, list(words), str(folder), self._files, dict(os.environ), args)
        self._process = context().Process(target=_begin, args=what)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        """Its exit code, negative for a signal; None while it works."""
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=120):
        """Wait for its end; return its standard output and its standard error."""
        self._process.join(timeout)
        assert self.returncode is not None, f"it works after {timeout} s still"
        out, err = (Path(file).read_text(encoding="utf-8") for file in self._files)
        return out, err


def _begin(place, words, folder, files, environment, args):
    print_into(*(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    sys.modules["torch"].set_num_threads(1)
    sys.argv = words
    leave(lambda: sys.exit(function_of(place)(*args)))
