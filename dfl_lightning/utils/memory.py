"""How much memory the machine has, and numbers of bytes for people."""

from __future__ import annotations

import os


def machine_memory() -> int | None:
    """Bytes of memory that the machine has; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one without these names
        return None


def size(number: float) -> str:
    """Bytes for people, powers of 1000.

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
