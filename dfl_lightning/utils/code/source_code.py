"""The source of code that belongs to no installed package: found, hashed, kept and compared.

A run depends on the user's own classes as much as on its settings. Their modules, and those that these import, are
named by a hash of their source, so that another version of a class is not taken for the same.
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
"""In the place of a hash, where there is no source. It equals nothing, not even itself."""

LIBRARIES = frozenset({"dfl_lightning", "lightning", "networkx", "numpy", "torch", "torchmetrics", "torchvision"})
"""Packages that are never a user's own code, wherever they are installed; a run keeps their versions."""


@dataclass(frozen=True)
class ModuleSource:
    """The source of one module.

    Attributes:
        sha256: of its bytes, in hexadecimal; `UNKNOWN` where there is no source.
        file: where a folder of sources has it, such as `pkg/a.py`.
        content: its text; None where there is none to keep.
        why: a sentence for the user, where a source should be known and is not.
    """

    sha256: str
    file: str
    content: bytes | None = None
    why: str = ""


def hashes_of(sources: Mapping[str, ModuleSource]) -> dict[str, str]:
    """Return what a config says of sources: the hash of each module, by its name."""
    return {name: sources[name].sha256 for name in sorted(sources)}


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the modules of both that are not known to be the same.

    A module that only one of them has belongs to a class that only one of them uses, which the settings say.

    Args:
        before: hashes by module, of an earlier run.
        now: likewise, of the present code.

    Examples:
        >>> differing({"mine": "a1", "nets": "b2"}, {"mine": "a1", "nets": "c3", "new": "d4"})
        ['nets']
        >>> differing({"__main__": "unknown"}, {"__main__": "unknown"})
        ['__main__']
    """
    names = sorted(before.keys() & now.keys())
    return [name for name in names if before[name] != now[name] or before[name] == UNKNOWN]


def find_sources(modules: Iterable[str], places: Sequence[str] | None = None) -> dict[str, ModuleSource]:
    """Find the sources of modules and of all that they import, without importing anything.

    Args:
        modules: their names.
        places: folders to look in, in the order of `sys.path`. None: modules of this process are where it has found
            them, and `sys.path` decides about the others.

    Returns:
        By name, without modules that are installed, built in, or not there.
    """
    found: dict[str, ModuleSource] = {}
    looked_at: set[str] = set()
    left = list(modules)
    while left:
        name = left.pop()
        if name in looked_at or name.partition(".")[0] in LIBRARIES:
            continue
        looked_at.add(name)
        left += _parents(name)
        file, is_package = _file_of(name, places)
        if file is None or not is_users_file(file):
            continue
        found[name] = source = _read(name, file, is_package)
        package = name if is_package else name.rpartition(".")[0]
        left += _imported(source.content or b"", package)
    return found


def write_sources(folder: Path, sources: Mapping[str, ModuleSource]) -> None:
    """Write sources below a folder, a file each.

    Args:
        folder: is made where a source is written.
        sources: by module.
    """
    for source in sources.values():
        if source.content is None:
            continue
        file = folder / source.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.content)


def is_kept(folder: Path, sources: Mapping[str, ModuleSource]) -> bool:
    """Tell whether a folder of sources has these, and no others.

    Args:
        folder: as `write_sources` has filled it.
        sources: by module.
    """
    here = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return here == {source.file: source.content for source in sources.values() if source.content is not None}


def source_of(name: str, content: bytes, is_package: bool = False) -> ModuleSource:
    """Make a source of what a module's file says.

    Args:
        name: of the module.
        content: of its file.
        is_package: whether it is the `__init__.py` of a package.
    """
    return ModuleSource(hashlib.sha256(content).hexdigest(), _place(name, is_package), content)


def _read(name: str, file: Path, is_package: bool) -> ModuleSource:
    try:
        content = file.read_bytes()
    except OSError as error:
        return ModuleSource(UNKNOWN, _place(name, is_package), None, f"{file} cannot be read ({error.strerror})")
    if file.suffix == ".py":
        return source_of(name, content, is_package)
    return ModuleSource(
        hashlib.sha256(content).hexdigest(), _place(name, is_package)
    )  # compiled: its bytes are its source


def _place(name: str, is_package: bool) -> str:
    return "/".join(name.split(".")) + ("/__init__.py" if is_package else ".py")


def _parents(name: str) -> Iterator[str]:
    """Name the packages that a module is in, which are imported with it."""
    parts = name.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))


# --- where a module is ------------------------------------------------------------------------------------------------
def _file_of(name: str, places: Sequence[str] | None) -> tuple[Path | None, bool]:
    """Find a module's file, and whether it is a package; no file where there is no such module, or none in a file."""
    module = sys.modules.get(name) if places is None else None
    if module is not None:
        return file_of_module(module), hasattr(module, "__path__")
    spec = _spec_of(name, sys.path if places is None else places)
    if spec is None or not spec.has_location or spec.origin is None:
        return None, False
    return Path(spec.origin), spec.submodule_search_locations is not None


def file_of_module(module: ModuleType) -> Path | None:
    """Return the file of an imported module; None where it has none, as in a notebook."""
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).absolute()


def _spec_of(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Look for a module as `import` does, but import none of the packages that it is in."""
    parts, path, spec = name.split("."), list(places), None
    for length in range(1, len(parts) + 1):
        spec = _found(".".join(parts[:length]), path, is_top=length == 1)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _found(name: str, path: Sequence[str], is_top: bool) -> ModuleSpec | None:
    """Ask Python's finders; those that know installed packages by other means than a path are asked for top names."""
    for finder in sys.meta_path if is_top else (PathFinder,):
        spec = finder.find_spec(name, path if finder is PathFinder else None)
        if spec is not None:
            return spec
    return None


# --- what a module imports --------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=512)
def _imported(content: bytes, package: str) -> tuple[str, ...]:
    """Name what a source may import, without Python's own modules: `from a import b` may mean a module `a.b`."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # whoever imports it is told
        return ()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (base := _base(node, package)):
            found += [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]
    return tuple(name for name in dict.fromkeys(found) if name.partition(".")[0] not in sys.stdlib_module_names)


def _base(node: ast.ImportFrom, package: str) -> str:
    """Name the module that `from … import` is about; empty where its dots lead out of the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])
