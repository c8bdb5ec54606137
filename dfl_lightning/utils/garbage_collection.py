"""Work without Python's search for cycles of references."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable Python's search for cycles of references within the context.

    It is for work that makes many small objects and needs nearly all of them until its end. Searching them again and
    again would take a fifth of the time in which a page is written.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
