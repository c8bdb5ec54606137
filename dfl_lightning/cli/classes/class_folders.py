"""Users' own classes beside the configs that name them.

Python finds a class `mine.LowestLoss` of the folder that a command works in. A config may lie elsewhere with its
classes: its folder is searched last, and only for modules that a config or the command line names. Nothing that merely
lies beside a config is ever imported in the place of something else.
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
    """Let Python find the classes beside configs.

    Args:
        arguments: options and configs.

    Returns:
        The arguments, with the folders that were needed.

    Raises:
        UserError: its folders are no list of texts.
    """
    configs = [(each.value or "", each.content) for each in arguments if each.content is not None]
    contents = [(path, Path(path).parent, content) for path, content in configs]
    options = [(each.option, each.value or "") for each in arguments if each.content is None]
    mentioned = {name for _, value in options for name in _modules(value)}
    mentioned |= {name for _, folder, content in contents for name in _mentioned(content, folder)}
    given = [value_of(value) for option, value in options if option == CLASS_FOLDERS]
    folders = [Path(name) for names in given for name in _texts(names, f"--{CLASS_FOLDERS}")]
    for path, own, content in contents:
        named = _texts(content.get(CLASS_FOLDERS), f"{path}: {CLASS_FOLDERS}")
        folders += [own, *(own / name if (own / name).is_dir() else Path(name) for name in named)]
    folders = [folder for folder in dict.fromkeys(folders) if folder.resolve() != Path.cwd().resolve()]
    places = {str(folder.absolute()) for folder in folders}
    others = [place for place in sys.path if place not in places]
    invalidate_caches()  # a module may be younger than Python's list of what there is
    used = [folder for folder in folders if any(_is_needed(folder, name, others) for name in mentioned)]
    sys.path += [place for place in (str(folder.absolute()) for folder in used) if place not in sys.path]
    return [*arguments, Argument(CLASS_FOLDERS, as_yaml(list(map(str, used))))] if used else arguments


def _is_needed(folder: Path, module: str, others: list[str]) -> bool:
    """Whether a top-level module is in the folder, and nowhere else that Python would look."""
    here = PathFinder.find_spec(module, [str(folder.absolute())])
    return here is not None and _rank(here) > _rank(_found_in(module, others))


def _found_in(module: str, places: list[str]) -> ModuleSpec | None:
    """Where Python finds a module if it looks in these places, and wherever else it always does."""
    for finder in sys.meta_path:
        spec = finder.find_spec(module, places if finder is PathFinder else None)
        if spec is not None:
            return spec
    return None


def _rank(spec: ModuleSpec | None) -> int:
    """A file or a package goes before a mere folder of that name, wherever they are."""
    return 0 if spec is None else 1 if spec.origin is None else 2


def _mentioned(value: Any, folder: Path) -> Iterator[str]:
    """Modules that a config, or a part of it in a file of its own, names as those of its classes."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mentioned(inner, folder)
    elif isinstance(value, str):
        yield from _modules(value)
        named = value.endswith((".yaml", ".yml"))  # other texts may be too long for the name of a file
        part = next((file for file in (folder / value, Path(value)) if named and file.is_file()), None)
        if part is not None and part.stat().st_size <= MOST_BYTES:
            yield from _modules(part.read_text(encoding="utf-8", errors="replace"))


def _modules(text: str) -> set[str]:
    """The first parts of the import paths in a text.

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
