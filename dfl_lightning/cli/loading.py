"""The import of the libraries by a command, in about half of the usual time.

Only a process that a command has to itself imports them in this way: in another one, imports and garbage collection
are not changed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from dfl_lightning.utils.code.put_off import import_without

UNUSED = ("matplotlib", "scipy", "torchvision")
"""Packages that torchmetrics imports, in seconds, for plots and for metrics of images and sounds."""

_is_own = False


def own_process() -> None:
    """Mark this process as one that a command has to itself."""
    global _is_own
    _is_own = True


@contextmanager
def loading() -> Iterator[None]:
    """Import libraries in the block faster, if a command has the process to itself.

    Imported objects stay until the process ends. So the garbage collector is off in the block, and ignores them later;
    objects that are made afterwards are collected as usual.
    """
    if not _is_own or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        import_without("torchmetrics", UNUSED)
        yield
    finally:
        gc.freeze()
        gc.enable()
