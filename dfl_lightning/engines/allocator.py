"""Settings of the memory allocator, so that freed memory stays with the process for the next cohort."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

LARGEST_KEPT = 2**25
"""Tensors of more bytes go straight back to the system: row sets do, a cohort's tensors do not."""

MOST_KEPT = 2**28
"""Freed bytes that an arena of the allocator (a thread has one) keeps at most."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc's allocator not to return a cohort's memory to the system after each cohort.

    Otherwise every cohort asks for its pages again, and the system clears each of them: a fifth of a short round of
    small perceptrons. The function does nothing on other systems than Linux with glibc, and if the user has set the
    allocator by the environment (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`).

    Returns:
        True if the allocator accepted both settings.
    """
    glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if not glibc or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, MOST_KEPT))
