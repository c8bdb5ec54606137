"""Configs and topologies that are shipped with the package and can be named without a path."""

from __future__ import annotations

from pathlib import Path

from dfl_lightning.utils.errors import UserError, nearest

_PACKAGE = Path(__file__).parents[2]


def shipped(kind: str) -> dict[str, Path]:
    """Return the shipped files of a kind (`"configs"` or `"topologies"`), by name without suffix.

    In a wheel they are inside the package, in a checkout next to it.
    """
    for folder in (_PACKAGE / kind, _PACKAGE.parent / kind):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.iterdir()) if path.is_file()}
    return {}


def find(kind: str, name: str | Path) -> Path:
    """Find the file that `name` means: an existing path, otherwise the shipped file of that name.

    Args:
        kind: `configs`, `topologies` or another folder of shipped files.
        name: a path, or the name of a shipped file, with or without its suffix.

    Raises:
        UserError: there is neither; the message lists the shipped names.
    """
    if Path(name).is_file():
        return Path(name)
    files = shipped(kind)
    path = Path(name)
    if path.name == str(path) and path.stem in files and path.suffix in ("", files[path.stem].suffix):
        return files[path.stem]
    choices = ", ".join(files)
    hint = nearest(path.stem, files)
    raise UserError(
        f"{name or repr(name)}: no such file, and none of that name among the shipped {kind}{hint} (shipped: {choices})"
    )
