"""Imports that a library does eagerly for what few of its users need, put off until that is used."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Union


def import_without(package: str, others: Collection[str]) -> None:
    """Import a package whose imports of some others are put off until it uses them.

    Only statements of the package's own modules are concerned, and only while it is imported: all other modules get the
    others themselves. Where the package does with them what a `PutOff` cannot do, it is imported again with them.

    Args:
        package: nothing happens where it has been imported.
        others: names of packages; those that are not installed are missing as ever.
    """
    if package in sys.modules:
        return
    before = set(sys.modules)
    try:
        with _imports_put_off(package, others):
            importlib.import_module(package)
    except Exception:  # whatever it is: what is wrong with the package itself shows when it is imported as ever
        for name in set(sys.modules) - before:
            if _is_of(name, (package,)):
                del sys.modules[name]
        importlib.import_module(package)


class PutOff:
    """What an import would have given; it is made when it is used.

    Until the importing package is complete, its attributes and the results of calls are put off, too. It has no
    attributes with two underscores so long.

    Args:
        text: what it stands for.
        make: makes it; called once.
        importing: not empty until the importing package is complete.
    """

    __slots__ = ("_importing", "_made", "_make", "_text")

    def __init__(self, text: str, make: Callable[[], Any], importing: Sequence[str]) -> None:
        for name, value in (("_text", text), ("_make", make), ("_importing", importing), ("_made", [])):
            object.__setattr__(self, name, value)

    def _found(self) -> Any:
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    def __getattr__(self, name: str) -> Any:
        if not self._importing:
            return getattr(self._found(), name)
        if name.startswith("__"):
            raise AttributeError(f"{self._text} is put off until it is used: its {name} is not known")
        return PutOff(f"{self._text}.{name}", lambda: getattr(self._found(), name), self._importing)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, or put that off, too."""
        if not self._importing:
            return self._found()(*args, **kwargs)
        return PutOff(f"{self._text}(...)", lambda: self._found()(*args, **kwargs), self._importing)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._found(), name, value)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._found())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._found())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._found(),)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  # the other form would ask this method again

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __dir__(self) -> list[str]:
        return dir(self._found())

    def __repr__(self) -> str:
        return f"<{self._text}, put off until it is used>"


@contextmanager
def _imports_put_off(package: str, others: Collection[str]) -> Iterator[None]:
    plain, importing = builtins.__import__, [package]
    installed = [other for other in others if find_spec(other) is not None]

    def imported(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer, wanted = str((globals or {}).get("__name__")), fromlist or ()
        if level or not _is_of(name, installed) or not _is_of(importer, (package,)) or "*" in wanted:
            return plain(name, globals, locals, wanted, level)
        return PutOff(name if wanted else name.partition(".")[0], lambda: plain(name, fromlist=wanted), importing)

    builtins.__import__ = imported
    try:
        yield
    finally:
        builtins.__import__ = plain
        importing.clear()


def _is_of(module: str, packages: Collection[str]) -> bool:
    return module.partition(".")[0] in packages
