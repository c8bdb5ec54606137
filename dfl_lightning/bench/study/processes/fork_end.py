"""The end of a fork: what Python does when it ends, for all that is not of the libraries."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Collection
from typing import NoReturn

OURS = "dfl_lightning"


def end_fork(code: int, inherited: Collection[str]) -> NoReturn:
    """End this process in Python's order: threads, exit handlers, garbage, modules, and the garbage that they leave.

    The libraries that were imported before the fork stay as they are: to take them to pieces would copy the memory that
    this process shares with its server, which takes longer than a small cell's round.

    Args:
        code: the exit code.
        inherited: names of the modules that were there at the fork.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    mine = vars(sys.modules[__name__])
    modules = [(name, vars(module)) for name, module in reversed([*sys.modules.items()])]
    for name, names in modules:  # of this library first, which knows the run, so that it goes while its classes work
        if name.partition(".")[0] == OURS and names is not mine:
            names.clear()
    gc.collect()
    for name, names in modules:
        if name not in inherited:
            names.clear()
    gc.collect()
    _flush()
    os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
