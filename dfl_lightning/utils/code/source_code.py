"""The source of a user's own code, which belongs to no installed package: search, hashes, copies and comparison.

A run depends on the user's own classes as much as on its settings. Their modules, and all modules that these import,
are identified by a hash of their source, so that another version of a class is not taken for the same.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from dfl_lightning.utils.code.users_files import is_users_file

UNKNOWN = "unknown"
"""Value instead of a hash if there is no source; comparisons take it for different from all hashes, itself included."""

LIBRARIES = frozenset({"dfl_lightning", "lightning", "networkx", "numpy", "torch", "torchmetrics", "torchvision"})
"""Packages that are never a user's own code, wherever they are installed; a run records their versions."""


@dataclass(frozen=True)
class ModuleSource:
    """The source of one module.

    Attributes:
        sha256: hash of the source's bytes, in hexadecimal; `UNKNOWN` if there is no source.
        file: path in a folder of sources, such as `pkg/a.py`.
        content: the source; None if there is none to save.
        why: a sentence for the user if the source should be known and is not.
    """

    sha256: str
    file: str
    content: bytes | None = None
    why: str = ""


def hashes_of(sources: Mapping[str, ModuleSource]) -> dict[str, str]:
    """Return the hash of each module by its name, as a config records it."""
    return {name: sources[name].sha256 for name in sorted(sources)}


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the modules of both runs whose sources differ or are unknown.

    A module of only one run belongs to a class that only this run uses, which the settings show.

    Args:
        before: hashes by module of an earlier run.
        now: hashes by module of the present code.

    Examples:
        >>> differing({"mine": "a1", "nets": "b2"}, {"mine": "a1", "nets": "c3", "new": "d4"})
        ['nets']
        >>> differing({"__main__": "unknown"}, {"__main__": "unknown"})
        ['__main__']
    """
    names = sorted(before.keys() & now.keys())
    return [name for name in names if before[name] != now[name] or before[name] == UNKNOWN]


def find_sources(modules: Iterable[str], places: Sequence[str] | None = None) -> dict[str, ModuleSource]:
    """Find the sources of modules and of all modules that they import, without importing anything.

    Args:
        modules: names of the modules.
        places: folders to search, in the order of `sys.path`. None: modules that this process has imported are found in
            their files, and others by `sys.path`.

    Returns:
        The sources by module, without modules that are installed, built in, or missing.
    """
    sources: dict[str, ModuleSource] = {}
    visited: set[str] = set()
    left = list(modules)
    while left:
        name = left.pop()
        if name in visited or name.partition(".")[0] in LIBRARIES:
            continue
        visited.add(name)
        left += _parents(name)
        file, is_package = _file_of(name, places)
        if file is None or not is_users_file(file):
            continue
        sources[name] = source = _read(name, file, is_package)
        package = name if is_package else name.rpartition(".")[0]
        left += _imported(source.content or b"", package)
    return sources


def write_sources(folder: Path, sources: Mapping[str, ModuleSource]) -> None:
    """Write sources below a folder, one file for each module.

    Args:
        folder: the folder, which is made if there is a source to write.
        sources: the sources by module.
    """
    for source in sources.values():
        if source.content is None:
            continue
        file = folder / source.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.content)


def is_kept(folder: Path, sources: Mapping[str, ModuleSource]) -> bool:
    """Return True if a folder of sources has exactly these sources.

    Args:
        folder: a folder that `write_sources` has filled.
        sources: the sources by module.
    """
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return files == {source.file: source.content for source in sources.values() if source.content is not None}


def source_of(name: str, content: bytes, is_package: bool = False) -> ModuleSource:
    """Create a `ModuleSource` from the content of a module's file.

    Args:
        name: name of the module.
        content: content of its file.
        is_package: True if the file is the `__init__.py` of a package.
    """
    return ModuleSource(hashlib.sha256(content).hexdigest(), _path_in_folder(name, is_package), content)


def _read(name: str, file: Path, is_package: bool) -> ModuleSource:
    try:
        content = file.read_bytes()
    except OSError as error:
        path = _path_in_folder(name, is_package)
        return ModuleSource(UNKNOWN, path, None, f"{file} cannot be read ({error.strerror})")
    if file.suffix == ".py":
        return source_of(name, content, is_package)
    # Of a compiled module, the bytes of the file are hashed, and nothing is saved.
    return ModuleSource(hashlib.sha256(content).hexdigest(), _path_in_folder(name, is_package))


def _path_in_folder(name: str, is_package: bool) -> str:
    return "/".join(name.split(".")) + ("/__init__.py" if is_package else ".py")


def _parents(name: str) -> Iterator[str]:
    """Yield the names of the packages that contain a module, which are imported with it."""
    parts = name.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))


# --- search for modules -----------------------------------------------------------------------------------------------
def _file_of(name: str, places: Sequence[str] | None) -> tuple[Path | None, bool]:
    """Find a module's file, None if there is none; the second value is True if the module is a package."""
    module = sys.modules.get(name) if places is None else None
    if module is not None:
        return file_of_module(module), hasattr(module, "__path__")
    spec = _spec_of(name, sys.path if places is None else places)
    if spec is None or not spec.has_location or spec.origin is None:
        return None, False
    return Path(spec.origin), spec.submodule_search_locations is not None


def file_of_module(module: ModuleType) -> Path | None:
    """Return the file of an imported module; None if it has none, as in a notebook."""
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).absolute()


def _spec_of(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Search for a module as `import` does, but without importing the packages that contain it."""
    parts, path, spec = name.split("."), list(places), None
    for length in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:length]), path, is_top=length == 1)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _find_spec(name: str, path: Sequence[str], is_top: bool) -> ModuleSpec | None:
    """Ask Python's finders for a module; only for top-level names all of them, as some find packages without a path."""
    for finder in sys.meta_path if is_top else (PathFinder,):
        spec = finder.find_spec(name, path if finder is PathFinder else None)
        if spec is not None:
            return spec
    return None


# --- imports of a module ----------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=512)
def _imported(content: bytes, package: str) -> tuple[str, ...]:
    """Return the names of modules that a source may import, without Python's own.

    For `from a import b` these are `a` and `a.b`, as `b` may be a module.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # Python reports the error when the module is imported
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (base := _base(node, package)):
            names += [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]
    return tuple(name for name in dict.fromkeys(names) if name.partition(".")[0] not in sys.stdlib_module_names)


def _base(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module in `from … import`; empty if its dots lead out of the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])
