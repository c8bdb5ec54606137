"""Postponed imports: a library's imports that few of its users need are executed when they are used."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Union


def import_without(package: str, others: Collection[str]) -> None:
    """Import a package, but postpone its imports of some other packages until it uses them.

    Only import statements in the package's own modules are postponed, and only while the package is imported. If the
    package uses the others in a way that a `PutOff` cannot support, it is imported again without postponing.

    Args:
        package: name of the package; nothing happens if it has been imported already.
        others: names of packages to postpone; those that are not installed raise as usual.
    """
    if package in sys.modules:
        return
    before = set(sys.modules)
    try:
        with _imports_put_off(package, others):
            importlib.import_module(package)
    except Exception:  # a fault of the package itself shows again in the import without postponing
        for name in set(sys.modules) - before:
            if _is_of(name, (package,)):
                del sys.modules[name]
        importlib.import_module(package)


class PutOff:
    """A placeholder for an imported object, which is made at its first use.

    Until the import of the importing package is complete, attributes and results of calls are placeholders too, and
    attributes that begin with two underscores do not exist.

    Args:
        text: description of the object.
        make: function that makes the object; called once.
        importing: not empty until the import of the importing package is complete.
    """

    __slots__ = ("_importing", "_made", "_make", "_text")

    def __init__(self, text: str, make: Callable[[], Any], importing: Sequence[str]) -> None:
        for name, value in (("_text", text), ("_make", make), ("_importing", importing), ("_made", [])):
            object.__setattr__(self, name, value)

    def _object(self) -> Any:
        """Return the object; make it at the first call."""
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    def __getattr__(self, name: str) -> Any:
        if not self._importing:
            return getattr(self._object(), name)
        if name.startswith("__"):
            raise AttributeError(f"{self._text} is put off until it is used: its {name} is not known")
        return PutOff(f"{self._text}.{name}", lambda: getattr(self._object(), name), self._importing)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object, or return a placeholder for the result."""
        if not self._importing:
            return self._object()(*args, **kwargs)
        return PutOff(f"{self._text}(...)", lambda: self._object()(*args, **kwargs), self._importing)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._object(), name, value)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._object())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._object())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._object(),)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  # `self | other` would call this method again

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __dir__(self) -> list[str]:
        return dir(self._object())

    def __repr__(self) -> str:
        return f"<{self._text}, put off until it is used>"


@contextmanager
def _imports_put_off(package: str, others: Collection[str]) -> Iterator[None]:
    """Replace Python's import by one that postpones a package's imports of some others, for the time of a block."""
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
