"""The classes of every group by name, for the checks and hints of the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import Any, get_args

import torch
import torchmetrics.classification
from lightning.pytorch import Callback, loggers
from lightning.pytorch import callbacks as stock
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torchmetrics import Metric

import dfl_lightning
from dfl_lightning import callbacks, data, models, objectives, tasks
from dfl_lightning.cli import keys
from dfl_lightning.cli.classes.annotations import EMPTY, evaluated, returns
from dfl_lightning.engines.optimizing.optimizers import ELEMENTWISE
from dfl_lightning.metrics.names import BUILT_IN
from dfl_lightning.utils.errors import UserError, nearest, reason

GROUPS: dict[str, type] = {name: attrgetter(base)(dfl_lightning) for name, base in keys.GROUPS.items()}
"""Base classes of all groups with shipped classes, by key; a group comes after the one that it is part of."""

FAMILIES = {name: GROUPS[name] for name in keys.FAMILIES}
"""Groups of policies and monitors, by their key in a config."""

NESTED_GROUPS: dict[str, type] = {"data.partition.base": data.Partition, "model.network.base": models.Network}
"""Arguments of classes that take another class of the same group."""

LIBRARY_GROUPS: dict[str, type] = {
    "model.optimizer": torch.optim.Optimizer,
    "model.lr_scheduler": torch.optim.lr_scheduler.LRScheduler,
    "model.loss": nn.Module,
    "model.metrics": Metric,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
}
"""Base classes of the groups whose classes are of torch, torchmetrics or Lightning, by key."""

CLASSES = {**GROUPS, **NESTED_GROUPS, **LIBRARY_GROUPS}
"""All options of a config that name classes, with their base classes."""

MANY = (*keys.LISTS, "trainer.callbacks", "trainer.logger", "model.metrics")
"""The options that take a list of classes."""

_ROOMS = (callbacks, objectives, data, models, tasks, torch.optim, torch.optim.lr_scheduler, stock, loggers)
_ROOMS_OF = {"model.loss": (torch.nn.modules.loss,), "model.metrics": (torchmetrics.classification,)}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_WORDS = {
    "outgoing": ("outgoing policy", "outgoing policies"),
    "monitors": ("monitor", "monitors"),
    "data": ("data set", "data sets"),
    "data.partition.base": ("partition", "partitions"),
    "model.network.base": ("network", "networks"),
    "model.loss": ("loss", "losses"),
    "model.lr_scheduler": ("schedule", "schedules"),
    "model.metrics": ("metric", "metrics"),
    "trainer.callbacks": ("callback", "callbacks"),
}
"""Singular and plural of the word for a group's classes, unless they are its key without and with an s."""


@cache
def shipped_classes(group: str) -> dict[str, type]:
    """Return the concrete classes of a group that have a short name, by name."""
    base = CLASSES[group]
    rooms = _ROOMS_OF.get(group, _ROOMS)
    exported = {n: getattr(room, n) for room in rooms for n in getattr(room, "__all__", None) or vars(room)}
    exported |= BUILT_IN if group == "model.metrics" else {}
    return {
        name: cls
        for name, cls in sorted(exported.items())
        if inspect.isclass(cls)
        and issubclass(cls, base)
        and not name.startswith("_")
        and cls is not base
        and not inspect.isabstract(cls)
    }


def names_of(group: str) -> list[str]:
    """List the names of a group's classes for hints and help.

    Of optimizers these are the ones that can be stacked, of metrics the built-in ones and those for classification, and
    of Lightning's callbacks those that are not policies.
    """
    if group == "model.optimizer":
        return list(ELEMENTWISE)
    classes = shipped_classes(group)
    if group == "model.metrics":
        return [*BUILT_IN, *(name for name in classes if name.startswith("Multiclass"))]
    ours = group not in LIBRARY_GROUPS
    return [name for name, cls in classes.items() if ours or not cls.__module__.startswith("dfl_lightning.")]


def listed(group: str) -> str:
    """List the choices of a group as part of a sentence.

    Examples:
        >>> listed("threshold")
        'thresholds are: AdaptiveThreshold'
    """
    return f"{_words(group)[1]} are: {', '.join(names_of(group))}"


def _words(group: str) -> tuple[str, str]:
    """Return the singular and the plural of the word for a group's classes."""
    word = group.rpartition(".")[2]
    return _WORDS.get(group, (word, f"{word}s"))


def class_of(group: str, name: str) -> Any:
    """Find the class with a name in a group; for a network, optimizer or loss also a function that makes one.

    Args:
        group: a key of `CLASSES`.
        name: the short name of a class, or an import path.

    Raises:
        UserError: the name is unknown, cannot be imported, or is of another group; the message names the choices.
    """
    choices = shipped_classes(group)
    if name in choices:
        return choices[name]
    thing = import_object(group, name) if "." in name else None
    networks = ("model.network", "model.network.base")
    base = nn.Module if group in networks else CLASSES[group]
    if inspect.isclass(thing):
        if issubclass(thing, base):
            return thing
        kind = next((other for other, its in GROUPS.items() if issubclass(thing, its)), None)
        wrong = f" '{name}' is not a subclass of {public_path(base)}"
    elif thing is None:
        kind = next((other for other in GROUPS if group in GROUPS and name in shipped_classes(other)), None)
        wrong = f": there is no '{name}'{nearest(name, choices)} ({listed(group)}; or your own by its import path)"
    elif not inspect.isroutine(thing) or (group in GROUPS and group not in networks):
        raise UserError(f"{group} '{name}' is not a class")
    else:
        base = Tensor if group == "model.loss" else base
        if returns(thing, (base,)) or (group == "model.loss" and inspect.isbuiltin(thing)):
            return thing
        raise UserError(f"{group} '{name}' {say_what_it_returns(base)}")
    if kind:
        word = _words(kind)[0]
        wrong = f" '{name}' is {'an' if word[0] in 'aeiou' else 'a'} {word}; {listed(group)}"
    raise UserError(group + wrong)


def say_what_it_returns(base: type) -> str:
    """Describe the error of a function, named instead of a class, whose result has no annotation."""
    path = public_path(base)
    return f"is a function that does not say that it returns a {path}; annotate it with '-> {path}', or name a class"


def public_path(cls: type) -> str:
    """Return the shortest import path of a class, which is the one that people write."""
    parts = cls.__module__.split(".")
    for length in range(2, len(parts)):
        module = ".".join(parts[:length])
        if getattr(importlib.import_module(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__name__}"


@cache
def parameters_of(made: Any) -> Mapping[str, inspect.Parameter]:
    """Return the arguments that a class or a function takes by name.

    They include those of base classes to which `__init__` passes keywords.

    Returns:
        The arguments with defaults and types; a type is `EMPTY` if it cannot be evaluated.

    Examples:
        >>> {name: parameter.default for name, parameter in parameters_of(callbacks.AdaptiveThreshold).items()}
        {'tau': 0.5, 'rule': 'ratio', 'normalise': False}
    """
    parameters: dict[str, inspect.Parameter] = {}
    for init in inits_of(made):
        for name, parameter in list(inspect.signature(init).parameters.items())[inspect.isclass(made) :]:
            if parameter.kind in _BY_NAME and name not in parameters:
                parameters[name] = parameter.replace(annotation=evaluated(parameter.annotation, init))
    return MappingProxyType(parameters)


def inits_of(made: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions that receive the arguments: `__init__` of a class and of bases that get its keywords."""
    if not inspect.isclass(made):
        yield made
        return
    for base in made.__mro__[:-1]:  # without `object`, whose `__init__` takes no arguments in spite of its signature
        init = base.__dict__.get("__init__")
        if init is None:
            continue
        yield init
        if not takes_keywords(init):
            return


def may_be_null(parameter: inspect.Parameter) -> bool:
    """Return True if an argument may be null; the parser itself would accept null for each argument."""
    kind = parameter.annotation
    return parameter.default is None or kind in (EMPTY, Any) or NoneType in get_args(kind)


def leaves_keywords_open(made: Any) -> bool:
    """Return True if a class or a function takes keywords that no signature names."""
    inits = list(inits_of(made))
    return bool(inits) and takes_keywords(inits[-1])


def takes_keywords(cls: Any) -> bool:
    """Return True if the signature has `**kwargs`."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


def import_object(where: str, path: str) -> Any:
    """Import the object that a path names: an attribute of a module, or of a class in one.

    Args:
        where: dotted name of the option, for messages.
        path: `module.name`, or `module.Class.name`.

    Raises:
        UserError: the module or the name does not exist, or importing the user's module fails.
    """
    parts = path.split(".")
    for length in range(max(len(parts) - 1, 1), 0, -1):
        module = ".".join(parts[:length])
        try:
            thing: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if length == 1 or error.name != module:  # otherwise the last part may be a class
                remedy = "run from its folder, put it next to the config, or install it"
                raise UserError(f"{where} '{path}': no module named '{error.name}'; {remedy}") from None
        except Exception as error:
            what = f"{type(error).__name__}: {reason(error)}"
            raise UserError(f"{where} '{path}': importing {module} failed with {what}") from error
    for depth, name in enumerate(parts[length:], length):
        if not hasattr(thing, name):
            what = f"{'the module ' * (depth == length)}{'.'.join(parts[:depth])}"
            raise UserError(f"{where} '{path}': {what} has no '{name}'{nearest(name, dir(thing))}")
        thing = getattr(thing, name)
    return thing


def first_line(thing: Any) -> str:
    """Return the first line of a class's documentation."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
