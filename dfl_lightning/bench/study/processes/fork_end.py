"""The end of a fork: the steps of Python's own end, for everything that the libraries do not own."""

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

    The libraries that were imported before the fork are not cleaned up. This would copy the memory that the process
    shares with its server, which takes longer than a round of a small cell.

    Args:
        code: the exit code.
        inherited: names of the modules that were imported before the fork.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    this_module = vars(sys.modules[__name__])
    modules = [(name, vars(module)) for name, module in reversed([*sys.modules.items()])]
    for name, names in modules:  # this library first: it holds the run, which must be deleted while classes work
        if name.partition(".")[0] == OURS and names is not this_module:
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
