"""The safety check of a config: objects must fit their argument, and functions must only compute.

The parser makes an object of each `class_path`, and if that names a function, calls it: `os.system`, for example, with
its `init_args`. So the parsed config is checked before any object is made. To find out what a name means, its module is
imported, which runs that module; no other code of a config runs unchecked.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, Sampler

from dfl_lightning.cli.classes.annotations import Accepted, accepted_by, returns
from dfl_lightning.cli.classes.registry import import_object, parameters_of, public_path, say_what_it_returns
from dfl_lightning.data import Partition
from dfl_lightning.objectives import Objective
from dfl_lightning.utils.errors import UserError

KINDS = (
    *(nn.Module, Optimizer, LRScheduler, Dataset, Sampler, Callback, Logger, Profiler),
    *(LightningDataModule, Partition, Objective),
)
"""Classes whose objects, in addition to callables, may be made for an argument without a useful annotation."""

ROOMS = (
    *("torch.nn.functional", "torch._C._nn", "torch._C._special", "torchvision.transforms", "torchvision.ops"),
    "torchmetrics.functional",
)
"""Modules of libraries whose functions may be named, since they only compute; others may access files or processes."""

_UNKNOWN = inspect.Parameter("unknown", inspect.Parameter.KEYWORD_ONLY)
"""Stands for an argument that the signature does not name."""


def check_objects(values: Any, where: str, annotation: Any, owner: str = "") -> None:
    """Check a parsed value of a config, at any depth, for objects and functions that are not allowed.

    Args:
        values: a specification with `class_path`, a list or mapping of such, a function, or a plain value.
        where: dotted name of the value, without `init_args`.
        annotation: the type of the argument to which it is passed, `EMPTY` if there is none.
        owner: the name of the class whose argument it is.

    Raises:
        UserError: one is not allowed; the message says what the argument takes.
    """
    if isinstance(values, (list, tuple)):
        for value in values:
            check_objects(value, where, annotation, owner)
    elif isinstance(values, (dict, Namespace)):
        inside = _mapping(values)
        if isinstance(inside.get("class_path"), str):
            _check_specification(inside, where, accepted_by(annotation), owner)
            return
        for key, value in inside.items():
            check_objects(value, f"{where}.{key}", annotation, owner)
    elif inspect.isroutine(values) or isinstance(values, functools.partial):
        _check_function(values, where, accepted_by(annotation))


def _mapping(values: Any) -> Mapping[str, Any]:
    return vars(values) if isinstance(values, Namespace) else values


def _check_specification(spec: Mapping[str, Any], where: str, accepted: Accepted, owner: str) -> None:
    """Check the class of a specification, and then each of its arguments."""
    made = import_object(where, spec["class_path"])
    if not _may_be_made(made, accepted):
        raise UserError(f"{where} '{spec['class_path']}' {_why_not(made, accepted, owner)}")
    parameters = parameters_of(made)
    for part in ("init_args", "dict_kwargs"):
        for option, value in _mapping(spec.get(part) or {}).items():
            parameter = parameters.get(option, _UNKNOWN)
            if value is not parameter.default:  # a default comes from the class, not from the config
                check_objects(value, f"{where}.{option}", parameter.annotation, made.__name__)


def _may_be_made(made: Any, accepted: Accepted) -> bool:
    bases = accepted.bases + (KINDS if accepted.unknown else ())
    if is_pythons_own(made) or not callable(made):
        return False
    if not inspect.isclass(made):
        return returns(made, bases)
    return issubclass(made, bases + accepted.made) or ((accepted.called or accepted.unknown) and _can_be_called(made))


def _can_be_called(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def _why_not(made: Any, accepted: Accepted, owner: str) -> str:
    """Describe why a name is not allowed for an argument, and what is allowed."""
    bases = accepted.bases + accepted.made
    names = " or ".join(map(public_path, bases))
    if is_pythons_own(made):
        return "is of Python's standard library, from which a config cannot make objects" + (
            f"; name a {names}" * bool(names)
        )
    if inspect.isclass(made) and bases:
        return f"is not a subclass of {names}"
    if accepted.called and not inspect.isclass(made):
        return "is a function; write its name alone, without class_path and init_args"
    if bases:
        return say_what_it_returns(bases[0])
    if accepted.unknown:
        return f"cannot be made for an argument without a type; annotate this argument of {owner or 'yours'}"
    return "is a class or a function, which this argument does not take; give it a plain value"


def _check_function(function: Any, where: str, accepted: Accepted) -> None:
    """Check a function that is passed as an argument, and called later."""
    inner = function.func if isinstance(function, functools.partial) else function
    name = f"{inner.__module__}.{getattr(inner, '__qualname__', '')}"
    if accepted.made and not returns(function, accepted.made):
        raise UserError(f"{where} '{name}' {say_what_it_returns(accepted.made[0])}")
    if not _only_computes(inner):
        raise UserError(
            f"{where} '{name}': a config may not name this function; name one of torch.nn.functional or "
            "torchvision.transforms, or write your own around it"
        )


def _only_computes(function: Any) -> bool:
    """Return True if a function is the user's own, or in one of the modules of `ROOMS`."""
    module = str(function.__module__)
    if inspect.isbuiltin(function) and module == "torch":
        return True
    return any(module == room or module.startswith(f"{room}.") for room in ROOMS) or not _is_installed(function)


def is_pythons_own(thing: Any) -> bool:
    """Return True if a class or a function is of Python's standard library.

    The file is compared too, since a module of the user may have the name of one of Python's.
    """
    module = str(getattr(thing, "__module__", None) or "builtins")
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] in sys.stdlib_module_names and (file is None or _is_below(file, _pythons()))


def _is_installed(function: Any) -> bool:
    """Return True if a function is of Python, of this package or of an installed one, not of a user's folder."""
    module = str(function.__module__ or "builtins")
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] == "dfl_lightning":
        return True
    return bool({"site-packages", "dist-packages"} & {*Path(file).parts}) or _is_below(file, _pythons())


def _is_below(file: str, folders: tuple[str, ...]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


@functools.cache
def _pythons() -> tuple[str, ...]:
    """Return the folders of the standard library."""
    return tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib"))
