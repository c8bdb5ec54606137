"""Users' own classes next to the configs that name them.

Python finds a class `mine.LowestLoss` in the working folder. A config may be in another folder, together with its
classes: that folder is searched last, and only for modules that a config or the command line names. So a file next to a
config never hides another module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from dfl_lightning.cli.arguments import Argument, value_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, MOST_BYTES, as_yaml

_IMPORT_PATH = re.compile(r"(?<![\w./-])([A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)+")


def find_class_folders(arguments: list[Argument]) -> list[Argument]:
    """Add the folders of configs to Python's search path, if they have classes that are named.

    Args:
        arguments: options and configs.

    Returns:
        The arguments, with one more for the folders that were added.

    Raises:
        UserError: a value of `class_folders` is not a list of texts.
    """
    configs = [(each.value or "", each.content) for each in arguments if each.content is not None]
    contents = [(path, Path(path).parent, content) for path, content in configs]
    options = [(each.option, each.value or "") for each in arguments if each.content is None]
    mentioned = {name for _, value in options for name in _modules(value)}
    mentioned |= {name for _, folder, content in contents for name in _mentioned(content, folder)}
    given = [value_of(value) for option, value in options if option == CLASS_FOLDERS]
    folders = [Path(name) for names in given for name in _texts(names, f"--{CLASS_FOLDERS}")]
    for path, home, content in contents:
        named = _texts(content.get(CLASS_FOLDERS), f"{path}: {CLASS_FOLDERS}")
        folders += [home, *(home / name if (home / name).is_dir() else Path(name) for name in named)]
    folders = [folder for folder in dict.fromkeys(folders) if folder.resolve() != Path.cwd().resolve()]
    added = {str(folder.absolute()) for folder in folders}
    elsewhere = [path for path in sys.path if path not in added]
    invalidate_caches()  # since a module may be newer than Python's cache of the folders
    used = [folder for folder in folders if any(_is_needed(folder, name, elsewhere) for name in mentioned)]
    sys.path += [path for path in (str(folder.absolute()) for folder in used) if path not in sys.path]
    return [*arguments, Argument(CLASS_FOLDERS, as_yaml(list(map(str, used))))] if used else arguments


def _is_needed(folder: Path, module: str, elsewhere: list[str]) -> bool:
    """Return True if a top-level module is in the folder, and Python does not find it elsewhere."""
    here = PathFinder.find_spec(module, [str(folder.absolute())])
    return here is not None and _rank(here) > _rank(_find_spec(module, elsewhere))


def _find_spec(module: str, paths: list[str]) -> ModuleSpec | None:
    """Find a module as an import does, with these paths instead of `sys.path`; return None if it is not found."""
    for finder in sys.meta_path:
        spec = finder.find_spec(module, paths if finder is PathFinder else None)
        if spec is not None:
            return spec
    return None


def _rank(spec: ModuleSpec | None) -> int:
    """Rank a find as Python does: a file or package precedes a folder without `__init__.py`, on whatever path."""
    return 0 if spec is None else 1 if spec.origin is None else 2


def _mentioned(value: Any, folder: Path) -> Iterator[str]:
    """Yield the top-level modules in a config and in YAML files that it includes."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mentioned(inner, folder)
    elif isinstance(value, str):
        yield from _modules(value)
        named = value.endswith((".yaml", ".yml"))  # other texts may be too long to be a file name
        part = next((file for file in (folder / value, Path(value)) if named and file.is_file()), None)
        if part is not None and part.stat().st_size <= MOST_BYTES:
            yield from _modules(part.read_text(encoding="utf-8", errors="replace"))


def _modules(text: str) -> set[str]:
    """Return the first parts of the import paths in a text.

    Examples:
        >>> sorted(_modules('{"class_path": "mine.Best", "init_args": {"net": parts.nets.Wide, "lr": 0.1}}'))
        ['mine', 'parts']
    """
    return set(_IMPORT_PATH.findall(text))


def _texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError(f"{where} is a list of folders, [exp] for example, not {value!r}")
    return value
