"""Which files of code are a user's own; loads nothing, so that it can be asked before the libraries are there."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_OURS = Path(__file__).parents[2]
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def is_ours(file: Path) -> bool:
    """Tell whether a file belongs to dfl_lightning."""
    return file.is_relative_to(_OURS)


def is_installed(file: Path) -> bool:
    """Tell whether a file is of Python or of an installed package."""
    packed = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(packed) or any(file.is_relative_to(room) for room in _INSTALLED)


def is_users_file(file: Path) -> bool:
    """Tell whether a file of code is neither ours nor of Python or of an installed package."""
    return file.is_file() and not is_ours(file) and not is_installed(file)
