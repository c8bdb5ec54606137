"""What has a name: the classes of every group, for the command line's checks, hints and `--list`."""

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

_ROOMS = (callbacks, objectives, data, models, tasks, torch.optim, torch.optim.lr_scheduler, stock, loggers)
_ROOMS_OF = {"model.loss": (torch.nn.modules.loss,), "model.metrics": (torchmetrics.classification,)}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_WORDS = {
    "outgoing": ("outgoing policy", "outgoing policies"),
    "monitors": ("monitor", "monitors"),
    "data": ("data set", "data sets"),
    "data.partition.base": ("partition", "partitions"),
    "model.loss": ("loss", "losses"),
    "model.lr_scheduler": ("schedule", "schedules"),
    "model.metrics": ("metric", "metrics"),
    "trainer.callbacks": ("callback", "callbacks"),
}
"""What one class of a group is called, and what several are, where the key and an s do not say it."""


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


def names_of(group: str) -> list[str]:
    """The classes of a group that are worth naming: optimizers that can be stacked, metrics for classes, no policies
    among Lightning's callbacks.
    """
    if group == "model.optimizer":
        return list(ELEMENTWISE)
    classes = shipped_classes(group)
    if group == "model.metrics":
        return [name for name in classes if name.startswith("Multiclass")]
    ours = group not in LIBRARY_GROUPS
    return [name for name, cls in classes.items() if ours or not cls.__module__.startswith("dfl_lightning.")]


def listed(group: str) -> str:
    """The choices of a group as part of a sentence.

    Examples:
        >>> listed("threshold")
        'thresholds are: AdaptiveThreshold'
    """
    return f"{_words(group)[1]} are: {', '.join(names_of(group))}"


def _words(group: str) -> tuple[str, str]:
    word = group.rpartition(".")[2]
    return _WORDS.get(group, (word, f"{word}s"))


def class_of(group: str, name: str) -> Any:
    """The class that a name of a group means; a function where one may make the network, the optimizer and the like.

    Args:
        group: a key of `CLASSES`.
        name: a class's short name, or the import path of any class.

    Raises:
        UserError: unknown, of another family, or not importable; the sentence names the choices.
    """
    choices = shipped_classes(group)
    if name in choices:
        return choices[name]
    found = import_object(group, name) if "." in name else None
    base = nn.Module if group == "model.network" else CLASSES[group]
    if inspect.isclass(found):
        if issubclass(found, base):
            return found
        kind = next((other for other, its in GROUPS.items() if issubclass(found, its)), None)
        wrong = f" '{name}' is not a subclass of {public_path(base)}"
    elif found is None:
        kind = next((other for other in GROUPS if group in GROUPS and name in shipped_classes(other)), None)
        wrong = f": there is no '{name}'{nearest(name, choices)} ({listed(group)}; or your own by its import path)"
    elif not inspect.isroutine(found) or (group in GROUPS and group != "model.network"):
        raise UserError(f"{group} '{name}' is not a class")
    else:
        base = Tensor if group == "model.loss" else base
        if returns(found, (base,)) or (group == "model.loss" and inspect.isbuiltin(found)):
            return found
        raise UserError(f"{group} '{name}' {say_what_it_returns(base)}")
    if kind:
        word = _words(kind)[0]
        wrong = f" '{name}' is {'an' if word[0] in 'aeiou' else 'a'} {word}; {listed(group)}"
    raise UserError(group + wrong)


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


@cache
def parameters_of(made: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments that a class, or a function, takes by name, those of bases included where it passes keywords on.

    Returns:
        Their defaults and types; a type is `EMPTY` where its text names what the module does not have.

    Examples:
        >>> {name: parameter.default for name, parameter in parameters_of(callbacks.AdaptiveThreshold).items()}
        {'tau': 0.5, 'rule': 'ratio', 'normalise': False}
    """
    found: dict[str, inspect.Parameter] = {}
    for init in inits_of(made):
        for name, parameter in list(inspect.signature(init).parameters.items())[inspect.isclass(made) :]:
            if parameter.kind in _BY_NAME and name not in found:
                found[name] = parameter.replace(annotation=evaluated(parameter.annotation, init))
    return MappingProxyType(found)


def inits_of(made: Any) -> Iterator[Callable[..., Any]]:
    """What a class's arguments go to: its `__init__`, and its bases' where keywords are passed on; or the function."""
    if not inspect.isclass(made):
        yield made
        return
    for base in made.__mro__[:-1]:  # without `object`, whose own takes no arguments, whatever its signature says
        init = base.__dict__.get("__init__")
        if init is None:
            continue
        yield init
        if not takes_keywords(init):
            return


def may_be_null(parameter: inspect.Parameter) -> bool:
    """Whether null is a value of an argument; the parser lets it pass everywhere."""
    kind = parameter.annotation
    return parameter.default is None or kind in (EMPTY, Any) or NoneType in get_args(kind)


def leaves_keywords_open(made: Any) -> bool:
    """Whether a class, or a function, takes arguments that no signature names."""
    inits = list(inits_of(made))
    return bool(inits) and takes_keywords(inits[-1])


def takes_keywords(cls: Any) -> bool:
    """Whether arguments are passed on that the signature does not name."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


def import_object(where: str, path: str) -> Any:
    """What an import path means: something of a module, or of a class in one.

    Args:
        where: the place of a config that names it.
        path: `module.name`, or `module.Class.name`.

    Raises:
        UserError: no such module or no such name in it, or an error inside the user's module.
    """
    parts = path.split(".")
    for length in range(max(len(parts) - 1, 1), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if length == 1 or error.name != module:  # otherwise the last part may be a class
                remedy = "run from its folder, put it beside the config, or install it"
                raise UserError(f"{where} '{path}': no module named '{error.name}'; {remedy}") from None
        except Exception as error:
            what = f"{type(error).__name__}: {reason(error)}"
            raise UserError(f"{where} '{path}': importing {module} failed with {what}") from error
    for depth, name in enumerate(parts[length:], length):
        if not hasattr(found, name):
            what = f"{'the module ' * (depth == length)}{'.'.join(parts[:depth])}"
            raise UserError(f"{where} '{path}': {what} has no '{name}'{nearest(name, dir(found))}")
        found = getattr(found, name)
    return found


def first_line(thing: Any) -> str:
    """The first line of a class's documentation."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
