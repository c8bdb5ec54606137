"""What has a name: the classes of every group, for the command line's checks, hints and `--list`."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from torch import nn

from dfl_lightning import callbacks, data, models, objectives
from dfl_lightning.errors import UserError, nearest

FAMILIES: dict[str, type] = {
    "dropout": callbacks.Dropout,
    "selection": callbacks.Selection,
    "threshold": callbacks.Threshold,
    "substitution": callbacks.Substitution,
    "aggregation": callbacks.Aggregation,
    "monitors": callbacks.Monitor,
}
"""Groups of policies and monitors, by their key in a config."""

GROUPS: dict[str, type] = {
    **FAMILIES,
    "objective": objectives.Objective,
    "data": data.FederatedData,
    "data.partition": data.Partition,
    "model.network": models.Network,
}
"""Every group whose classes answer to their names."""

_ROOMS = (callbacks, objectives, data, models)


def shipped_classes(group: str) -> dict[str, type]:
    """The concrete shipped classes of a group, by name."""
    base = GROUPS[group]
    found = {name: getattr(room, name) for room in _ROOMS for name in room.__all__}
    return {
        name: cls
        for name, cls in sorted(found.items())
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base and not inspect.isabstract(cls)
    }


def check_class(group: str, name: str) -> None:
    """Refuse a class name that a group cannot take.

    Args:
        group: a key of `GROUPS`.
        name: a shipped class's name, or the import path of any class.

    Raises:
        UserError: unknown, of another family, or not importable; the sentence names the choices.
    """
    choices = shipped_classes(group)
    plural = group if group.endswith("s") else group + ("es" if group.endswith("x") else "s")
    listed = f"{plural} are: {', '.join(choices)}"
    if "." not in name:
        if name in choices:
            return
        for other in GROUPS:
            if other != group and name in shipped_classes(other):
                article = "an" if other[0] in "aeiou" else "a"
                raise UserError(f"{group} '{name}' is {article} {other}; {listed}")
        raise UserError(f"{group}: there is no '{name}'{nearest(name, choices)}; {listed}, or your own by its import path")
    cls = import_class(group, name)
    allowed: tuple[type, ...] = (GROUPS[group],) if group != "model.network" else (nn.Module,)
    if not issubclass(cls, allowed):
        for other, base in FAMILIES.items():
            if issubclass(cls, base):
                raise UserError(f"{group} '{name}' is a {other}; {listed}")
        wanted = " or ".join(f"{base.__module__.split('.')[0]}.{base.__name__}" for base in allowed)
        raise UserError(f"{group} '{name}' is not a subclass of {wanted}")


def options_of(cls: type) -> list[str]:
    """The arguments that a class takes, those of its bases included where it passes keywords on.

    Example:
        >>> options_of(callbacks.AdaptiveThreshold)
        ['tau', 'rule']
    """
    found: list[str] = []
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if init is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in found]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def check_option(group: str, name: str, option: str) -> None:
    """Refuse an argument that the group's class does not take.

    Raises:
        UserError: with the nearest argument and all of them.
    """
    cls = shipped_classes(group).get(name) or import_class(group, name)
    options = options_of(cls)
    if option not in options:
        listed = f" (its options: {', '.join(options)})" if options else " (it has none)"
        raise UserError(f"{group} {cls.__name__} has no option '{option}'{nearest(option, options)}{listed}")


def import_class(group: str, path: str) -> type:
    """A class by its import path.

    Raises:
        UserError: no such module or class, or an error inside the user's module.
    """
    module, _, name = path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{group} '{path}': no module named '{error.name}'; run from its folder or install it") from None
    except AttributeError:
        raise UserError(f"{group} '{path}': the module {module} has no '{name}'") from None
    except Exception as error:
        raise UserError(f"{group} '{path}': importing {module} failed with {type(error).__name__}: {error}") from error
    if not inspect.isclass(found):
        raise UserError(f"{group} '{path}' is not a class")
    return found


def first_line(thing: Any) -> str:
    """The first line of a class's documentation."""
    return (inspect.getdoc(thing) or "").splitlines()[0] if inspect.getdoc(thing) else ""
