"""The config of a run that Python code started: the classes and arguments of its objects, as `dfl-fit` reads them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import ProgressBar

from dfl_lightning.callbacks import base as families
from dfl_lightning.checkpoints.history import NOT_MAKEABLE, UNKNOWN_SETTINGS
from dfl_lightning.checkpoints.io import RoundCheckpoint
from dfl_lightning.data.readers.arrays import is_frame
from dfl_lightning.objectives import Plain
from dfl_lightning.runs.traffic import ProcessTraffic
from dfl_lightning.utils.code.constructor_arguments import arguments_of, assigned_to

_GROUPS = ("Clock", "Dropout", "Outgoing", "Selection", "Threshold", "Substitution", "Aggregation", "Prediction")
_OWN_KEYS = ("topology", "engine", "run_name", "defaults", "callbacks")
"""Arguments of the trainer that are not under the key `trainer`: they have a key of their own, or none."""

_OF_THE_MODULE = (
    *("local_epochs", "local_steps", "batch_size", "batch_growth"),
    *("finetune_epochs", "init", "on_divergence"),
)
"""Options of the module that are read from its attributes, since a user may have assigned to them."""


class Writer:
    """A writer of objects as specifications with `class_path` and `init_args`.

    Attributes:
        unknown: texts of objects whose arguments are not known, by setting.
        not_makeable: texts of objects that are known, but that a config cannot make, such as arrays, by setting.
    """

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}
        self.not_makeable: dict[str, str] = {}

    def write(self, value: Any, name: str) -> Any:
        """Convert a value to plain types that YAML can hold.

        Args:
            value: a plain value, an object, or a function.
            name: dotted name of the setting.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return {str(key): self.write(inner, f"{name}.{key}") for key, inner in value.items()}
        if isinstance(value, torch.Tensor | np.ndarray):
            return self._array(value, name)
        if is_frame(value):
            return self._frame(value, name)
        if isinstance(value, list | tuple):
            return [self.write(inner, f"{name}.{index}") for index, inner in enumerate(value)]
        if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
            return self._made(value.func, dict(value.keywords), name)
        if isinstance(value, type):
            return self._made(value, {}, name)
        if inspect.isroutine(value):
            return self._function(value, name)
        arguments = arguments_of(value)
        if arguments is None:
            self.unknown[name] = _text(value)
            return {"class_path": _path(type(value)), "repr": _text(value)}
        assigned = {key: content for key, content in assigned_to(value).items() if key not in arguments}
        if assigned:  # a config cannot set attributes that are not arguments of the constructor
            listed = ", ".join(f"{key} = {_text(content)}" for key, content in assigned.items())
            self.unknown[name] = f"{_text(value)}, assigned: {listed}"
        return self._made(type(value), arguments, name)

    def _made(self, cls: type, arguments: dict[str, Any], name: str) -> dict[str, Any]:
        if not _is_importable(cls):
            self.not_makeable[name] = _path(cls)
        inner = {key: self.write(value, f"{name}.{key}") for key, value in arguments.items()}
        return {"class_path": _path(cls), "init_args": inner}

    def _function(self, value: Any, name: str) -> str:
        if not _is_importable(value):
            self.unknown[name] = _text(value)
            return _text(value)
        return _path(value)

    def _array(self, value: Any, name: str) -> str:
        array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)
        if array.dtype.hasobject:  # its bytes are addresses, which differ between equal runs
            self.unknown[name] = f"array of objects {list(array.shape)}"
            return self.unknown[name]
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        self.not_makeable[name] = words = f"array {array.dtype} {list(array.shape)} {digest}"
        return words

    def _frame(self, value: Any, name: str) -> str:
        """Name a data frame by its shape and a digest, since its own text shows the first rows of a user's data."""
        digest = hashlib.sha256(value.to_csv().encode()).hexdigest()[:16]
        self.not_makeable[name] = words = f"data frame {list(value.shape)} {digest}"
        return words


def config_of_objects(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the config of a run that Python code started, with notes on settings that a config cannot repeat.

    Args:
        trainer: the trainer, whose callbacks are the policies and monitors.
        module: the module after its setup, with objective and optimizer.
    """
    writer = Writer()
    options = arguments_of(trainer) or {}
    config: dict[str, Any] = {"seed_everything": module.federation.seed}
    config["trainer"] = {k: writer.write(v, f"trainer.{k}") for k, v in options.items() if k not in _OWN_KEYS}
    config["trainer"] |= {"max_rounds": trainer.max_epochs, "max_epochs": None}  # a second fit may have more
    given = {k: v for k, v in (arguments_of(module) or {}).items() if k not in ("objective", "optimizer")}
    given |= {name: getattr(module, name) for name in _OF_THE_MODULE}
    config["model"] = {k: writer.write(v, f"model.{k}") for k, v in given.items()}
    config["model"]["optimizer"] = _optimizer(module, writer)
    config["data"] = writer.write(trainer.datamodule, "data")
    config["topology"] = writer.write(trainer.topology, "topology")
    other_callbacks = []
    callbacks = list(trainer.callbacks)
    for family in _GROUPS:
        key, kind = family.lower(), getattr(families, family)
        policies = [writer.write(each, key) for each in callbacks if isinstance(each, kind)]
        config[key] = (policies or None) if family == "Outgoing" else (policies[0] if policies else None)
    config["objective"] = None if type(module.objective) is Plain else writer.write(module.objective, "objective")
    monitors = [each for each in callbacks if isinstance(each, families.Monitor)]
    config["monitors"] = [writer.write(each, f"monitors.{type(each).__name__}") for each in monitors]
    for each in callbacks:
        is_automatic = isinstance(each, RoundCheckpoint | ProcessTraffic | ProgressBar) or each is trainer.run_folder
        is_automatic |= type(each).__module__.startswith("dfl_lightning.terminal.")  # it only prints
        if not is_automatic and not isinstance(each, families.Policy | families.Monitor):
            other_callbacks.append(writer.write(each, f"trainer.callbacks.{type(each).__name__}"))
    config["trainer"]["callbacks"] = other_callbacks or None
    config["engine"] = trainer.engine
    for key, names in ((UNKNOWN_SETTINGS, writer.unknown), (NOT_MAKEABLE, writer.not_makeable)):
        if names:
            config[key] = names
    return config


def _optimizer(module: Any, writer: Writer) -> Any:
    """Return the optimizer's specification.

    A factory that a config cannot name, such as a lambda, is replaced by the class and options of the optimizer that it
    makes, if that has one parameter group.
    """
    made = module.parts.optimizer
    factory = module.optimizer_factory
    if isinstance(factory, functools.partial | type) or len(made.groups) != 1:
        return writer.write(factory, "model.optimizer")
    names = inspect.signature(made.kind).parameters
    options = {key: value for key, value in made.groups[0].items() if key in names and key != "params"}
    return writer._made(made.kind, options, "model.optimizer")


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def _is_importable(thing: Any) -> bool:
    """Return True if another process can import the class or function by its path."""
    name = getattr(thing, "__qualname__", "")
    if thing.__module__ == "__main__" or "." in name:
        return False
    return getattr(sys.modules.get(str(thing.__module__)), name, None) is thing


def _text(value: Any) -> str:
    """Return the `repr` without memory addresses, which differ between equal runs; the class name if `repr` fails."""
    try:
        words = repr(value)
    except Exception:  # a `repr` of the user's must not end a run, which does not need it
        words = f"<{_path(type(value))}>"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(words.split()))[:300]
