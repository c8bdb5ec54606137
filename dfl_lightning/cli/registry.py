"""What has a name: the classes of every group, for the command line's checks, hints and `--list`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

import torch
import torchmetrics.classification
from lightning.pytorch import Callback, loggers
from lightning.pytorch import callbacks as stock
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torchmetrics import Metric

import dfl_lightning
from dfl_lightning import callbacks, data, models, objectives
from dfl_lightning.cli import keys
from dfl_lightning.cli.annotations import returns
from dfl_lightning.engines.optimizers import ELEMENTWISE
from dfl_lightning.utils.errors import UserError, nearest, reason

GROUPS: dict[str, type] = {name: attrgetter(base)(dfl_lightning) for name, base in keys.GROUPS.items()}
"""Every group whose classes answer to their names; a group comes after the one that it is part of."""

FAMILIES = {name: GROUPS[name] for name in keys.FAMILIES}
"""Groups of policies and monitors, by their key in a config."""

NESTED_GROUPS: dict[str, type] = {"data.partition.base": data.Partition}
"""Arguments of a group's classes that take a class of that group again."""

LIBRARY_GROUPS: dict[str, type] = {
    "model.optimizer": torch.optim.Optimizer,
    "model.lr_scheduler": torch.optim.lr_scheduler.LRScheduler,
    "model.loss": nn.Module,
    "model.metrics": Metric,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
}
"""Groups whose classes are of torch, torchmetrics or Lightning."""

CLASSES = {**GROUPS, **NESTED_GROUPS, **LIBRARY_GROUPS}
"""Every place of a config that classes are named in, and the class that they derive from."""

MANY = (*keys.LISTS, "trainer.callbacks", "trainer.logger", "model.metrics")
"""Those of them that take a list."""

_ROOMS = (callbacks, objectives, data, models, torch.optim, torch.optim.lr_scheduler, stock, loggers)
_ROOMS_OF = {"model.loss": (torch.nn.modules.loss,), "model.metrics": (torchmetrics.classification,)}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PLURALS = {"model.loss": "losses", "model.lr_scheduler": "schedules", "outgoing": "outgoing policies"}
_WORDS = {
    "outgoing": "outgoing policy",
    "data": "data set",
    "data.partition": "partition",
    "data.partition.base": "partition",
    "model.network": "network",
}


@cache
def shipped_classes(group: str) -> dict[str, type]:
    """The concrete classes of a group that have a short name, by name."""
    base = CLASSES[group]
    rooms = _ROOMS_OF.get(group, _ROOMS)
    found = {n: getattr(room, n) for room in rooms for n in getattr(room, "__all__", None) or vars(room)}
    return {
        name: cls
        for name, cls in sorted(found.items())
        if inspect.isclass(cls)
        and issubclass(cls, base)
        and not name.startswith("_")
        and cls is not base
        and not inspect.isabstract(cls)
    }


def listed(group: str) -> str:
    """The choices of a group as part of a sentence.

    Example:
        >>> listed("threshold")
        'thresholds are: AdaptiveThreshold'
    """
    word = _PLURALS.get(group) or _WORDS.get(group) or group.rpartition(".")[2]
    plural = word if word.endswith("s") else f"{word}s"
    choices = ELEMENTWISE if group == "model.optimizer" else _stock_first(group)
    return f"{plural} are: {', '.join(choices)}"


def _stock_first(group: str) -> list[str]:
    """The classes of a group that are worth naming: no policies among Lightning's callbacks, metrics for classes."""
    classes = shipped_classes(group)
    if group == "model.metrics":
        return [name for name in classes if name.startswith("Multiclass")]
    own = group in GROUPS or group in NESTED_GROUPS
    return [name for name, cls in classes.items() if own or not cls.__module__.startswith("dfl_lightning.")]


def check_class(group: str, name: str) -> None:
    """Refuse a class name that a group cannot take.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        name: a class's short name, or the import path of any class.

    Raises:
        UserError: unknown, of another family, or not importable; the sentence names the choices.
    """
    choices = shipped_classes(group)
    if "." not in name:
        if name in choices:
            return
        for other in GROUPS:
            if other != group and group in GROUPS and name in shipped_classes(other):
                raise UserError(f"{group} '{name}' is {_a(_WORDS.get(other, other))}; {listed(group)}")
        raise UserError(
            f"{group}: there is no '{name}'{nearest(name, choices)} ({listed(group)}; or your own by its import path)"
        )
    cls = import_class(group, name)
    allowed = CLASSES[group] if group != "model.network" else nn.Module
    if not inspect.isclass(cls):
        allowed = Tensor if group == "model.loss" else allowed
        if not returns(cls, (allowed,)) and not (group == "model.loss" and inspect.isbuiltin(cls)):
            raise UserError(f"{group} '{name}' {say_what_it_returns(allowed)}")
        return
    if not issubclass(cls, allowed):
        for other, base in GROUPS.items():
            if issubclass(cls, base):
                raise UserError(f"{group} '{name}' is {_a(_WORDS.get(other, other))}; {listed(group)}")
        raise UserError(f"{group} '{name}' is not a subclass of {public_path(allowed)}")


def _a(word: str) -> str:
    word = word.removesuffix("s") if word == "monitors" else word
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def say_what_it_returns(base: type) -> str:
    """What is wrong with a function that is named in place of a class, and what to do about it."""
    path = public_path(base)
    return f"is a function that does not say that it returns a {path}; annotate it with '-> {path}', or name a class"


def public_path(cls: type) -> str:
    """A class's import path as people write it: of the shortest module that offers it."""
    parts = cls.__module__.split(".")
    for length in range(2, len(parts)):
        module = ".".join(parts[:length])
        if getattr(importlib.import_module(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__name__}"


def class_of(group: str, name: str) -> Any:
    """The class, or the function that makes one's objects, that a checked name of a group means.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        name: a short name or an import path that `check_class` has passed.
    """
    return shipped_classes(group).get(name) or import_class(group, name)


def path_of(group: str, name: str) -> str:
    """A class's import path where a name is a shipped class's short name in a group; otherwise the name as it is.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        name: a short name or an import path.

    Example:
        >>> path_of("selection", "Gossip")
        'dfl_lightning.callbacks.Gossip'
        >>> path_of("selection", "mine.Gossip")
        'mine.Gossip'
    """
    cls = shipped_classes(group).get(name)
    return name if cls is None else public_path(cls)


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """The arguments that a class takes by name, those of its bases included where it passes keywords on."""
    found: dict[str, inspect.Parameter] = {}
    for init in inits_of(cls):
        parameters = list(inspect.signature(init).parameters.values())[inspect.isclass(cls) :]
        found |= {p.name: p for p in parameters if p.kind in _BY_NAME and p.name not in found}
    return found


def inits_of(made: Any) -> Iterator[Callable[..., Any]]:
    """What a class's arguments go to: its `__init__`, and its bases' where keywords are passed on; or the function."""
    if not inspect.isclass(made):
        yield made
        return
    for base in made.__mro__:
        init = base.__dict__.get("__init__")
        if init is None:
            continue
        yield init
        if not takes_keywords(init):
            return


def options_of(cls: Any) -> dict[str, Any]:
    """The arguments that a class takes and their defaults.

    Example:
        >>> options_of(callbacks.AdaptiveThreshold)
        {'tau': 0.5, 'rule': 'ratio'}
    """
    return {name: parameter.default for name, parameter in parameters_of(cls).items()}


def may_be_null(parameter: inspect.Parameter) -> bool:
    """Whether null is a value of an argument; the parser lets it pass everywhere."""
    kind = parameter.annotation
    kind = kind if isinstance(kind, str) else repr(kind)
    unknown = parameter.annotation is parameter.empty
    return parameter.default is None or unknown or any(word in kind for word in ("None", "Optional", "Any"))


def check_option(group: str, name: str, option: str, value: Any = ...) -> None:
    """Refuse an argument that the group's class does not take, or null where it takes none.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        name: of the class.
        option: of its arguments.
        value: what the argument is to be; default: not looked at.

    Raises:
        UserError: with the nearest argument and all of them.
    """
    cls = class_of(group, name)
    parameters = parameters_of(cls)
    if option not in parameters:
        ours = group not in LIBRARY_GROUPS and cls in shipped_classes(group).values()
        if not ours and takes_keywords(cls):
            return  # what they are for, only the parser finds out
        its = f" (its options: {', '.join(parameters)})" if parameters else " (it has none)"
        raise UserError(f"{group} {cls.__name__} has no option '{option}'{nearest(option, parameters)}{its}")
    if value is None and not may_be_null(parameters[option]):
        raise UserError(f"{group}.{option}=null; leave it out, or give it a value")


def takes_keywords(cls: Any) -> bool:
    """Whether arguments are passed on that the signature does not name."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


def import_class(group: str, path: str) -> Any:
    """A class by its import path; a function, too, where a network, an optimizer and the like are made by one.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        path: `module.Class`.

    Raises:
        UserError: no such module or class, or an error inside the user's module.
    """
    found = import_object(group, path)
    made_by_function = inspect.isroutine(found) and (group == "model.network" or group in LIBRARY_GROUPS)
    if not inspect.isclass(found) and not made_by_function:
        raise UserError(f"{group} '{path}' is not a class")
    return found


def import_object(group: str, path: str) -> Any:
    """What an import path means: something of a module, or of a class in one.

    Args:
        group: a key of `GROUPS` or `LIBRARY_GROUPS`.
        path: `module.name`, or `module.Class.name`.

    Raises:
        UserError: no such module or no such name in it, or an error inside the user's module.
    """
    module, _, name = path.rpartition(".")
    names = [name]
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name == module and "." in module:  # perhaps a class
                module, _, name = module.rpartition(".")
                names.insert(0, name)
                continue
            raise UserError(
                f"{group} '{path}': no module named '{error.name}'; run from its folder, put it beside the config, "
                "or install it"
            ) from None
        except Exception as error:
            what = f"{type(error).__name__}: {reason(error)}"
            raise UserError(f"{group} '{path}': importing {module} failed with {what}") from error
    for depth, name in enumerate(names):
        try:
            found = getattr(found, name)
        except AttributeError:
            where = ".".join([module, *names[:depth]])
            near = nearest(name, dir(found))
            raise UserError(f"{group} '{path}': {'the module ' * (depth == 0)}{where} has no '{name}'{near}") from None
    return found


def first_line(thing: Any) -> str:
    """The first line of a class's documentation."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
