"""The memory of the machine, and the format of numbers of bytes."""

from __future__ import annotations

import os


def machine_memory() -> int | None:
    """Return the machine's memory in bytes; None if the system does not tell it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one without these names
        return None


def size(number: float) -> str:
    """Format a number of bytes, with units of powers of 1000.

    Examples:
        >>> size(14_400_000)
        '14.4 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        text = f"{number:.{int(unit != 'B')}f}"
        if float(text) < 1000:
            return f"{text} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
