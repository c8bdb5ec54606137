"""Recording of the arguments of an object's constructor, so that a run can write them into its config."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_NAME = "_constructor_arguments"


class Arguments:
    """The constructor's arguments of an object, and attributes that were assigned later.

    Args:
        values: arguments by name, defaults included.

    Attributes:
        made: attributes of plain types at the end of the constructor, by name.
        assigned: those of them that had other values before a run.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.made: dict[str, Any] = {}
        self.assigned: dict[str, Any] = {}


class RecordsArguments:
    """A base class whose subclasses, users' own included, record the arguments of their constructors."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the constructor that a subclass defines."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


_PLAIN = (bool, int, float, str, type(None))


def note_assigned(thing: Any) -> None:
    """Record the attributes of an object that a user has assigned after its constructor.

    It is called before a run, which changes attributes too.

    Args:
        thing: a policy, an objective, or data.
    """
    recorded = getattr(thing, "__dict__", {}).get(_NAME)
    if recorded is not None:
        now = _plain_attributes(thing)
        changed = {name: now[name] for name, value in recorded.made.items() if name in now and now[name] != value}
        recorded.assigned = changed


def assigned_to(thing: Any) -> dict[str, Any]:
    """Return the values that `note_assigned` has recorded, by attribute."""
    recorded = getattr(thing, "__dict__", {}).get(_NAME)
    return {} if recorded is None else dict(recorded.assigned)


def _plain_attributes(thing: Any) -> dict[str, Any]:
    """Return the public attributes of an object that are numbers, texts or None, by name."""
    return {name: value for name, value in vars(thing).items() if name[0] != "_" and isinstance(value, _PLAIN)}


def arguments_of(thing: Any) -> dict[str, Any] | None:
    """Return the constructor's arguments of an object, with values that were assigned later.

    They are empty if no class of the object defines a constructor, and None if they were not recorded.
    """
    recorded = getattr(thing, "__dict__", {}).get(_NAME)
    if recorded is not None:
        return {name: recorded.assigned.get(name, value) for name, value in recorded.values.items()}
    has_no_constructor = isinstance(thing, RecordsArguments) and not any(
        "__init__" in vars(base) for base in type(thing).__mro__ if issubclass(base, RecordsArguments)
    )
    return {} if has_no_constructor else None


def record(thing: Any, given: dict[str, Any]) -> None:
    """Record the arguments of an object whose class is not a `RecordsArguments`; its constructor begins with this.

    Args:
        thing: the object.
        given: the constructor's local variables.
    """
    values = {name: value for name, value in given.items() if name not in ("self", "__class__", "kwargs")}
    thing.__dict__[_NAME] = Arguments({**values, **given.get("kwargs", {})})


def _recording(constructor: Any) -> Any:
    """Wrap a constructor so that it records its arguments."""
    signature = inspect.signature(constructor)
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

    @functools.wraps(constructor)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        outermost = _NAME not in self.__dict__  # otherwise a subclass has called its parent's constructor
        if outermost:
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:
                constructor(self, *args, **kwargs)  # it raises with Python's own message
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
