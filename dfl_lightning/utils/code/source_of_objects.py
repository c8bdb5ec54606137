"""The sources of objects, classes and functions of this process, those of notebooks included.

A class of a file is as its file says, if the file still is what Python has read. A class that was typed into a notebook
has no file: its own lines are its source, with those of whatever they name there.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.machinery
import inspect
import linecache
import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dfl_lightning.utils.code.source_code import (
    LIBRARIES,
    UNKNOWN,
    ModuleSource,
    file_of_module,
    find_sources,
    source_of,
)
from dfl_lightning.utils.code.users_files import is_users_file

_MOST_OBJECTS = 50_000
"""Objects that are looked into: a bound for data sets that are lists of samples."""

_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    torch.Tensor,
    torch.dtype,
    torch.device,
    torch.Generator,
    np.ndarray,
)
_NOT_FOLLOWED = ("trainer", "_trainer", "fabric", "_fabric")
"""Attributes that lead from a part of a run to the whole of it."""
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None), tuple)


def sources_of(things: Iterable[Any]) -> dict[str, ModuleSource]:
    """Find the sources of the classes and functions that things are, or are made of.

    Args:
        things: objects, which are looked into; classes; functions.

    Returns:
        By module, those of the modules that these import included; nothing of installed packages. A module whose source
        is not known, or is no longer what Python has read, has the hash `UNKNOWN`.
    """
    modules: set[str] = set()
    typed: dict[str, list[Any]] = {}  # classes and functions without a file, by module
    definitions = list(_definitions(things))
    for definition in definitions:
        _sort(definition, modules, typed)
    lines = {name: _typed_source(name, found, modules) for name, found in sorted(typed.items())}
    sources = {**find_sources(sorted(modules)), **lines}
    for name, source in sources.items():
        if source.content is not None and name not in lines and _is_outdated(name, source.content, definitions):
            why = (
                f"{file_of_module(sys.modules[name])} was changed after Python had read it; restart to run what it says"
            )
            sources[name] = ModuleSource(UNKNOWN, source.file, None, why)
    return dict(sorted(sources.items()))


# --- which classes and functions --------------------------------------------------------------------------------------
def _definitions(things: Iterable[Any]) -> Iterator[Any]:
    """Walk through objects; yields classes, their bases included, and functions, each once."""
    seen: dict[int, Any] = {}  # the objects are kept, so that no other one gets the same id
    left = deque(things)
    while left and len(seen) < _MOST_OBJECTS:
        thing = left.popleft()  # what is nearest first: what is left out, if anything, is deep in large data
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if inspect.isclass(thing):
            yield thing
            left += thing.__mro__[1:]
        elif isinstance(thing, FunctionType):
            yield thing
            left += [inspect.unwrap(thing), *_closed_over(thing)]
        elif isinstance(thing, MethodType):
            left += [thing.__func__, thing.__self__]
        elif isinstance(thing, functools.partial):
            left += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, dict):
            left += thing.values()
        elif isinstance(thing, list | tuple | set | frozenset):
            left += thing
        elif not isinstance(thing, ModuleType):
            left.append(type(thing))
            inside = getattr(thing, "__dict__", None) or {}
            left += [value for name, value in inside.items() if name not in _NOT_FOLLOWED]


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not set yet
            continue


def _sort(definition: Any, modules: set[str], typed: dict[str, list[Any]]) -> None:
    """Put a class or function with those of files, with those without, or with neither where it is installed."""
    name = str(definition.__module__)
    if name.partition(".")[0] in LIBRARIES:
        return
    file = _file_of(definition)
    if file is not None:
        if is_users_file(file):
            modules.add(name)
    elif next(_codes(definition), None) is not None or (name in sys.modules and not _is_builtin(definition)):
        typed.setdefault(name, []).append(definition)


def _file_of(definition: Any) -> Path | None:
    """Return the file of a class's or function's module, unless its code was not read from there, as in a notebook."""
    module = sys.modules.get(str(definition.__module__))
    file = None if module is None else file_of_module(module)
    if file is None or definition.__module__ != "__main__":
        return file
    codes = list(_codes(definition))
    return file if not codes or any(Path(code.co_filename).absolute() == file for code in codes) else None


def _is_builtin(definition: Any) -> bool:
    """Tell whether a class or function without a file is of Python itself."""
    name = str(definition.__module__)
    if name == "builtins":
        return getattr(builtins, definition.__name__, None) is definition or not isinstance(definition, FunctionType)
    return name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names


def _codes(definition: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of the functions of a class."""
    values = [definition] if isinstance(definition, FunctionType) else list(vars(definition).values())
    for value in values:
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        inner = inner.fget if isinstance(inner, property) else inner
        if isinstance(inner, FunctionType):
            yield inspect.unwrap(inner).__code__


# --- of a file: is it what Python has read? ---------------------------------------------------------------------------
def _is_outdated(name: str, content: bytes, definitions: Iterable[Any]) -> bool:
    """Tell whether a module's file now says something else than what this process runs.

    Only what Python's own loader has read can be compared: others may change what they read, as pytest does.
    """
    module = sys.modules.get(name)
    loader = getattr(module, "__loader__", None)
    if module is None or type(loader) is not importlib.machinery.SourceFileLoader:
        return False
    file = str(file_of_module(module))
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
    own += [definition for definition in definitions if definition.__module__ == name]
    running = [code for value in own if isinstance(value, FunctionType | type) for code in _codes(value)]
    now = _compiled(content, file)
    return any(str(Path(code.co_filename).absolute()) == file and code not in now for code in running)


@functools.lru_cache(maxsize=512)
def _compiled(content: bytes, file: str) -> frozenset[CodeType]:
    """Return the code of all functions of a source; none where it is no Python any more."""
    try:
        return frozenset(_nested(compile(content, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return frozenset()


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


# --- of a notebook ----------------------------------------------------------------------------------------------------
def _typed_source(name: str, definitions: Iterable[Any], modules: set[str]) -> ModuleSource:
    """Join the lines of classes and functions that have no file, and of what they name in their module.

    Args:
        name: of the module, `__main__` for example.
        definitions: its classes and functions.
        modules: of files, to which those are added that the lines name.
    """
    namespace = vars(sys.modules[name]) if name in sys.modules else {}
    parts: dict[str, str] = {}
    left = list(definitions)
    while left:
        definition = left.pop()
        label = str(definition.__qualname__)
        if label in parts:
            continue
        lines = _lines_of(definition)
        if lines is None:
            return ModuleSource(UNKNOWN, f"{'/'.join(name.split('.'))}.py")
        parts[label] = lines
        for word in sorted(_names_in(lines) & namespace.keys()):
            value = namespace[word]
            if isinstance(value, ModuleType):
                modules.add(value.__name__)
            elif isinstance(value, FunctionType | type):
                if value.__module__ == name:
                    left.append(value)
                else:
                    _sort(value, modules, {})
            elif isinstance(value, _CONSTANTS):
                parts[word] = f"{word} = {value!r}\n"
    return source_of(name, "\n\n".join(parts[label] for label in sorted(parts)).encode())


def _names_in(lines: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.Name)}


def _lines_of(definition: Any) -> str | None:
    """Return the lines of a class or function in what was typed, decorators included; None where they are not kept."""
    for code in _codes(definition):
        text = "".join(linecache.getlines(code.co_filename))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, kinds) and _first(node) <= code.co_firstlineno <= (node.end_lineno or 0)
        ]
        named = [node for node in around if getattr(node, "name", "<lambda>") == definition.__name__]
        if named:
            chosen = named[-1]
            lines = text.splitlines(keepends=True)[_first(chosen) - 1 : chosen.end_lineno]
            return textwrap.dedent("".join(lines))
    return None


def _first(node: Any) -> int:
    """Return the first line of a definition, that of its first decorator where it has some."""
    return min([int(node.lineno), *(int(each.lineno) for each in getattr(node, "decorator_list", []))])
