"""Files that ship with the package and answer to their names: configs and topologies."""

from __future__ import annotations

from pathlib import Path

from dfl_lightning.utils.errors import UserError, nearest

_PACKAGE = Path(__file__).parents[2]


def shipped(kind: str) -> dict[str, Path]:
    """The shipped files of a kind (`"configs"` or `"topologies"`), by name without suffix.

    In a wheel they are inside the package, in a checkout next to it.
    """
    for folder in (_PACKAGE / kind, _PACKAGE.parent / kind):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.iterdir()) if path.is_file()}
    return {}


def find(kind: str, name: str | Path) -> Path:
    """The file that `name` means: an existing path, otherwise the shipped file of that name.

    Args:
        kind: `configs`, `topologies` or another folder of shipped files.
        name: a path, or the name of a shipped file, with or without its suffix.

    Raises:
        UserError: there is neither; the sentence lists the shipped names.
    """
    if Path(name).is_file():
        return Path(name)
    files = shipped(kind)
    word = Path(name)
    if word.name == str(word) and word.stem in files and word.suffix in ("", files[word.stem].suffix):
        return files[word.stem]
    choices = ", ".join(files)
    hint = nearest(word.stem, files)
    raise UserError(
        f"{name or repr(name)}: no such file, and none of that name among the shipped {kind}{hint} (shipped: {choices})"
    )
