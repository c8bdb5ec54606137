"""Type annotations: the objects that an argument takes, and the class of a function's result."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from torch import Tensor

EMPTY = inspect.Parameter.empty
"""The type of an argument without annotation, and the default of one without default."""

_PLAIN = (Tensor, str, bytes, int, float, complex, type(None))
_CONTAINERS = ("builtins", "collections", "collections.abc")


class Accepted(NamedTuple):
    """The objects that an argument takes.

    Attributes:
        bases: classes whose objects it takes.
        called: True if it takes a callable.
        made: classes of the objects that the callable returns, such as an optimizer.
        unknown: True if its type does not tell.
    """

    bases: tuple[type, ...] = ()
    called: bool = False
    made: tuple[type, ...] = ()
    unknown: bool = False


def accepted_by(annotation: Any) -> Accepted:
    """Return the objects that an argument of some type takes.

    Examples:
        >>> from torch import nn
        >>> accepted_by(list[nn.Module] | None)
        Accepted(bases=(<class 'torch.nn.modules.module.Module'>,), called=False, made=(), unknown=False)
        >>> accepted_by(Callable[..., nn.Module] | str)
        Accepted(bases=(), called=True, made=(<class 'torch.nn.modules.module.Module'>,), unknown=False)
        >>> accepted_by(dict).unknown
        True
    """
    if isinstance(annotation, TypeVar):
        return accepted_by(annotation.__bound__)
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind is collections.abc.Callable:
        return Accepted(called=True, made=accepted_by(arguments[-1]).bases if arguments else ())
    if kind in (type, Literal):
        return Accepted()
    if kind in (Union, UnionType):
        return _together(arguments)
    if not inspect.isclass(kind) or kind in (EMPTY, object, Any) or getattr(kind, "_is_protocol", False):
        return Accepted(unknown=True)
    if issubclass(kind, _PLAIN):
        return Accepted()
    if kind.__module__ in _CONTAINERS:
        return _together(arguments) if arguments else Accepted(unknown=True)
    return Accepted(bases=(kind,))


def _together(annotations: tuple[Any, ...]) -> Accepted:
    """Return the union of the objects that some types take; an ellipsis, as in a tuple's type, is skipped."""
    parts = [accepted_by(annotation) for annotation in annotations if annotation is not ...]
    return Accepted(
        bases=tuple(dict.fromkeys(base for part in parts for base in part.bases)),
        called=any(part.called for part in parts),
        made=tuple(dict.fromkeys(base for part in parts for base in part.made)),
        unknown=any(part.unknown for part in parts),
    )


def evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Evaluate an annotation that is a text; return `EMPTY` if it contains a name that the module does not have.

    Args:
        annotation: the annotation of an argument or of a result; returned as it is unless it is a text.
        function: the function to which it belongs, in whose module names are looked up.

    Examples:
        >>> evaluated("list[int] | None", accepted_by)
        list[int] | None
        >>> evaluated("NotThere", accepted_by) is EMPTY
        True
    """
    if not isinstance(annotation, str):
        return annotation
    typing_names = {**vars(collections.abc), **vars(typing)}  # torch imports these for type checkers only
    try:
        return eval(annotation, {**typing_names, **getattr(inspect.unwrap(function), "__globals__", {})})
    except Exception:  # its names may exist for type checkers only, or in a later Python
        return EMPTY


def returns(function: Callable[..., Any], bases: tuple[type, ...]) -> bool:
    """Return True if a function's annotation says that it returns an object of one of some classes.

    Examples:
        >>> returns(accepted_by, (tuple,))
        True
        >>> returns(len, (int,))
        False
    """
    try:
        annotation = inspect.signature(function).return_annotation
    except (ValueError, TypeError):  # functions in C have no signature
        return False
    made = get_origin(kind := evaluated(annotation, function)) or kind
    return inspect.isclass(made) and made is not EMPTY and issubclass(made, bases)
