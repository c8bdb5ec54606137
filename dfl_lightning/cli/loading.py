"""The libraries as a command loads them: in about half of the time that importing them takes.

A process that is not a command's own loads them as Python does: what it keeps, and how it looks for garbage, is not
ours.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from dfl_lightning.utils.code.put_off import import_without

UNUSED = ("matplotlib", "scipy", "torchvision")
"""Packages that torchmetrics imports for pictures and for metrics of images and sounds; it takes seconds."""

_is_own = False


def own_process() -> None:
    """Say that this process is a command's own: nothing else has begun in it."""
    global _is_own
    _is_own = True


@contextmanager
def loading() -> Iterator[None]:
    """Import the libraries inside of this.

    Python does not look for garbage among what is imported, which stays until the end: neither now nor later, nor when
    the process ends. It does so as ever among all that is made afterwards.
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
