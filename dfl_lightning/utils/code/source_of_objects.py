"""The sources of objects, classes and functions of this process, those of notebooks included.

The source of a class in a file is the file, if it has not changed since Python has read it. The source of a class that
was typed into a notebook consists of its own lines and those of all names of the notebook that they use.
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
"""Largest number of objects that are searched, which bounds the time for data sets that are lists of samples."""

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
"""Attributes that refer from a part of a run to the whole run."""
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None), tuple)


def sources_of(things: Iterable[Any]) -> dict[str, ModuleSource]:
    """Find the sources of classes and functions, and of those that objects consist of.

    Args:
        things: classes, functions, and objects, whose attributes and items are searched.

    Returns:
        Sources by module, with those of the modules that these import, without installed packages. If the source of a
        module is not known, or its file has changed since Python has read it, the hash is `UNKNOWN`.
    """
    modules: set[str] = set()
    typed: dict[str, list[Any]] = {}  # classes and functions without a file, by module
    definitions = list(_definitions(things))
    for definition in definitions:
        _sort(definition, modules, typed)
    lines = {name: _typed_source(name, members, modules) for name, members in sorted(typed.items())}
    sources = {**find_sources(sorted(modules)), **lines}
    for name, source in sources.items():
        if source.content is not None and name not in lines and _is_outdated(name, source.content, definitions):
            why = (
                f"{file_of_module(sys.modules[name])} was changed after Python had read it; restart to run what it says"
            )
            sources[name] = ModuleSource(UNKNOWN, source.file, None, why)
    return dict(sorted(sources.items()))


# --- search in objects ------------------------------------------------------------------------------------------------
def _definitions(things: Iterable[Any]) -> Iterator[Any]:
    """Search objects for classes, their bases included, and functions; yield each once."""
    seen: dict[int, Any] = {}  # it refers to the objects, so that no other object gets the same id
    left = deque(things)
    while left and len(seen) < _MOST_OBJECTS:
        thing = left.popleft()  # nearest objects come first, so that only those deep in large data may be left out
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
            attributes = getattr(thing, "__dict__", None) or {}
            left += [value for name, value in attributes.items() if name not in _NOT_FOLLOWED]


def _closed_over(function: FunctionType) -> Iterator[Any]:
    """Yield the values of a function's closure."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable is not set yet
            continue


def _sort(definition: Any, modules: set[str], typed: dict[str, list[Any]]) -> None:
    """Add a class or function to the modules with files or to those typed without one, unless it is installed."""
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
    """Return the file of a class's or function's module; None if its code is not from the file, as in a notebook."""
    module = sys.modules.get(str(definition.__module__))
    file = None if module is None else file_of_module(module)
    if file is None or definition.__module__ != "__main__":
        return file
    codes = list(_codes(definition))
    return file if not codes or any(Path(code.co_filename).absolute() == file for code in codes) else None


def _is_builtin(definition: Any) -> bool:
    """Return True if a class or function without a file belongs to Python itself."""
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


# --- comparison of files with running code ----------------------------------------------------------------------------
def _is_outdated(name: str, content: bytes, definitions: Iterable[Any]) -> bool:
    """Return True if a module's file differs from the code that this process runs.

    Only modules of Python's own loader can be compared, as other loaders may change the code, as pytest's does.
    """
    module = sys.modules.get(name)
    loader = getattr(module, "__loader__", None)
    if module is None or type(loader) is not importlib.machinery.SourceFileLoader:
        return False
    file = str(file_of_module(module))
    members = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
    members += [definition for definition in definitions if definition.__module__ == name]
    running = [code for value in members if isinstance(value, FunctionType | type) for code in _codes(value)]
    now = _compiled(content, file)
    return any(str(Path(code.co_filename).absolute()) == file and code not in now for code in running)


@functools.lru_cache(maxsize=512)
def _compiled(content: bytes, file: str) -> frozenset[CodeType]:
    """Return the code of all functions of a source; an empty set if it is not valid Python any more."""
    try:
        return frozenset(_nested(compile(content, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return frozenset()


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


# --- code of notebooks ------------------------------------------------------------------------------------------------
def _typed_source(name: str, definitions: Iterable[Any], modules: set[str]) -> ModuleSource:
    """Join the lines of classes and functions that have no file, and of all names of their module that they use.

    Args:
        name: name of the module, `__main__` for example.
        definitions: classes and functions of the module.
        modules: names of modules with files; those that the lines use are added.
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
        for variable in sorted(_names_in(lines) & namespace.keys()):
            value = namespace[variable]
            if isinstance(value, ModuleType):
                modules.add(value.__name__)
            elif isinstance(value, FunctionType | type):
                if value.__module__ == name:
                    left.append(value)
                else:
                    _sort(value, modules, {})
            elif isinstance(value, _CONSTANTS):
                parts[variable] = f"{variable} = {value!r}\n"
    return source_of(name, "\n\n".join(parts[label] for label in sorted(parts)).encode())


def _names_in(lines: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.Name)}


def _lines_of(definition: Any) -> str | None:
    """Return the typed lines of a class or function, decorators included; None if Python has not kept them."""
    for code in _codes(definition):
        text = "".join(linecache.getlines(code.co_filename))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
        enclosing = [
            node
            for node in ast.walk(tree)
            if isinstance(node, kinds) and _first_line(node) <= code.co_firstlineno <= (node.end_lineno or 0)
        ]
        matching = [node for node in enclosing if getattr(node, "name", "<lambda>") == definition.__name__]
        if matching:
            innermost = matching[-1]
            lines = text.splitlines(keepends=True)[_first_line(innermost) - 1 : innermost.end_lineno]
            return textwrap.dedent("".join(lines))
    return None


def _first_line(node: Any) -> int:
    """Return the number of the first line of a definition, decorators included."""
    return min([int(node.lineno), *(int(decorator.lineno) for decorator in getattr(node, "decorator_list", []))])
