"""Kill real runs or studies at random moments, and compare their end with that of one left alone.

    python scripts/kill.py run --help
    python scripts/kill.py study --help

Needs Linux.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from killing import runs, studies
from killing.starts import PROC

KILLED = {"run": runs.main, "study": studies.main}


def main(argv: Sequence[str] | None = None) -> int:
    """Kill what the first argument names; returns the exit code."""
    what, *words = (sys.argv[1:] if argv is None else argv) or [""]
    if what not in KILLED:
        print("kill: give `run` or `study` first, for example: python scripts/kill.py run --help", file=sys.stderr)
        return 2
    if not PROC.is_dir():
        print("kill: there is no /proc here; run it on Linux", file=sys.stderr)
        return 2
    return KILLED[what](words)


if __name__ == "__main__":
    sys.exit(main())
