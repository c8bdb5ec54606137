"""Distinction of a user's own files of code; the module imports no library, so that it can be used before these."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_OURS = Path(__file__).parents[2]
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def is_ours(file: Path) -> bool:
    """Return True if a file belongs to dfl_lightning."""
    return file.is_relative_to(_OURS)


def is_installed(file: Path) -> bool:
    """Return True if a file belongs to Python or to an installed package."""
    in_packages = bool({"site-packages", "dist-packages"} & set(file.parts))
    return in_packages or any(file.is_relative_to(folder) for folder in _INSTALLED)


def is_users_file(file: Path) -> bool:
    """Return True if a file belongs neither to dfl_lightning nor to Python or an installed package."""
    return file.is_file() and not is_ours(file) and not is_installed(file)
