"""Every function and method that a room exports says what its arguments are, if it has two or more."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import dfl_lightning

EXPORTED = {
    name
    for package in ["dfl_lightning", *(m.name for m in pkgutil.walk_packages(dfl_lightning.__path__, "dfl_lightning."))]
    for name in getattr(importlib.import_module(package), "__all__", ())
}
"""Names that a room exports; of the others, `Args:` says what a name, shape or unit does not."""

OF_A_RULE = {"layer", "name", "now"}  # arguments of the stacked engine's rules, which are described once, at `Rule`


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(dfl_lightning.__path__, "dfl_lightning.")]
    return [name for name in found if "._" not in name]


def public_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, function and docstring of each public function and method that the module defines."""
    for name, value in vars(module).items():
        if name not in EXPORTED or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name, value, value.__doc__ or ""
        elif inspect.isclass(value):
            yield from methods(value)


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield the methods that a class is the first to document, and its constructor with the class's docstring."""
    for name, value in vars(owner).items():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if not inspect.isfunction(function) or function.__module__ != owner.__module__:
            continue
        if name == "__init__" and not dataclasses.is_dataclass(owner):
            yield owner.__qualname__, function, f"{owner.__doc__}\n{function.__doc__}"
        elif not name.startswith("_") and not any(name in vars(base) for base in owner.__mro__[1:]):
            yield f"{owner.__qualname__}.{name}", function, function.__doc__ or ""


def undocumented(function: Callable[..., Any], text: str) -> list[str]:
    """List arguments that no line of `Args:` names, if there are two or more."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    if set(names) >= OF_A_RULE:
        return []
    entries = re.findall(r"^ +([*\w, ]+):", text.partition("Args:")[2], re.MULTILINE)
    named = {word.strip(" *") for entry in entries for word in entry.split(",")}
    return [name for name in names if name not in named] if len(names) > 1 else []


@pytest.mark.parametrize("name", modules())
def test_every_argument_of_a_public_function_is_described(name: str) -> None:
    module = importlib.import_module(name)
    lacking = {place: undocumented(function, text) for place, function, text in public_functions(module)}
    assert not {place: names for place, names in lacking.items() if names}
