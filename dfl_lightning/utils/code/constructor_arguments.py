"""The constructor's arguments of an object, recorded when it is made, so that a run can write them into its config."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_NAME = "_constructor_arguments"


class Arguments:
    """The arguments that an object was made with.

    Args:
        values: by name, defaults included.

    Attributes:
        made: plain attributes when the constructor was done, by name.
        assigned: those that were assigned other values before a run.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.made: dict[str, Any] = {}
        self.assigned: dict[str, Any] = {}


class RecordsArguments:
    """A base whose subclasses record their constructor's arguments, those that a user writes included."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the constructor that a subclass defines."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


_PLAIN = (bool, int, float, str, type(None))


def note_assigned(thing: Any) -> None:
    """Note the attributes of an object that were assigned after its constructor, before a run changes others.

    Args:
        thing: a policy, an objective, or data.
    """
    found = getattr(thing, "__dict__", {}).get(_NAME)
    if found is not None:
        now = _plain_attributes(thing)
        found.assigned = {name: now[name] for name, value in found.made.items() if name in now and now[name] != value}


def assigned_to(thing: Any) -> dict[str, Any]:
    """Return what `note_assigned` has noted, by attribute.

    Args:
        thing: an object.
    """
    found = getattr(thing, "__dict__", {}).get(_NAME)
    return {} if found is None else dict(found.assigned)


def _plain_attributes(thing: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if name[0] != "_" and isinstance(value, _PLAIN)}


def arguments_of(thing: Any) -> dict[str, Any] | None:
    """Return the constructor's arguments of an object; None where they were not recorded.

    Args:
        thing: an object. One of a class without a constructor of its own has no arguments.
    """
    found = getattr(thing, "__dict__", {}).get(_NAME)
    if found is not None:
        return {name: found.assigned.get(name, value) for name, value in found.values.items()}
    without = isinstance(thing, RecordsArguments) and not any(
        "__init__" in vars(base) for base in type(thing).__mro__ if issubclass(base, RecordsArguments)
    )
    return {} if without else None


def record(thing: Any, given: dict[str, Any]) -> None:
    """Record the arguments of an object whose constructor is not wrapped.

    Args:
        thing: the object, at the beginning of its constructor.
        given: the constructor's local variables.
    """
    values = {name: value for name, value in given.items() if name not in ("self", "__class__", "kwargs")}
    thing.__dict__[_NAME] = Arguments({**values, **given.get("kwargs", {})})


def _recording(constructor: Any) -> Any:
    signature = inspect.signature(constructor)
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

    @functools.wraps(constructor)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        outermost = _NAME not in self.__dict__  # else a subclass calls its parent's constructor
        if outermost:
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:
                constructor(self, *args, **kwargs)  # raises with Python's own words
                return
            bound.apply_defaults()
            values = dict(list(bound.arguments.items())[1:])
            for name in variadic:
                values.update(values.pop(name))
            self.__dict__[_NAME] = Arguments(values)
        constructor(self, *args, **kwargs)
        if outermost:
            self.__dict__[_NAME].made = _plain_attributes(self)

    return wrapped
