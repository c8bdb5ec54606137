"""The commit of the library, which a table names."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dfl_lightning.bench.study.plan import CONFIG, Cell


def commit_of(cell: Cell) -> str:
    """Read the library's commit when the cell was started from the first line of its config; empty if unknown."""
    file = cell.folder / CONFIG
    try:
        first = file.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    return first.partition("commit ")[2].strip()


def commit_now() -> str:
    """Return the commit of the library if it runs from a checkout; otherwise an empty text."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return ""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):  # git is not installed, or too slow
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
