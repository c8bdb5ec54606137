"""The config of a run from Python: the classes and arguments of its objects, in the form that `dfl-fit` reads."""

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
from dfl_lightning.objectives import Plain
from dfl_lightning.runs.traffic import ProcessTraffic
from dfl_lightning.utils.code.constructor_arguments import arguments_of, assigned_to

_GROUPS = ("Dropout", "Outgoing", "Selection", "Threshold", "Substitution", "Aggregation", "Prediction")
_OWN_KEYS = ("topology", "engine", "run_name", "defaults", "callbacks")
"""Arguments of the trainer that have a top-level key of their own, or none."""


_OF_THE_MODULE = ("local_epochs", "local_steps", "batch_size", "finetune_epochs", "init", "on_divergence")
"""Options that the module reads from its attributes, to which a user may assign."""


class Writer:
    """A writer of objects as specifications with `class_path` and `init_args`.

    Attributes:
        unknown: objects whose arguments are not known, by the name of the setting.
        not_makeable: objects that are known, but that no text can make, likewise.
    """

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}
        self.not_makeable: dict[str, str] = {}

    def write(self, value: Any, name: str) -> Any:
        """Write a value as YAML can hold it.

        Args:
            value: plain, an object, or a function.
            name: of the setting.
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
        if isinstance(value, list | tuple):
            return [self.write(inner, f"{name}.{place}") for place, inner in enumerate(value)]
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
        others = {key: found for key, found in assigned_to(value).items() if key not in arguments}
        if others:  # attributes that no argument of the constructor sets
            said = ", ".join(f"{key} = {_text(found)}" for key, found in others.items())
            self.unknown[name] = f"{_text(value)}, assigned: {said}"
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
        if array.dtype.hasobject:  # its bytes are addresses
            self.unknown[name] = f"array of objects {list(array.shape)}"
            return self.unknown[name]
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        self.not_makeable[name] = words = f"array {array.dtype} {list(array.shape)} {digest}"
        return words


def config_of_objects(trainer: Any, module: Any) -> dict[str, Any]:
    """Write the config of a run from Python, with the names of the settings that a text cannot repeat.

    Args:
        trainer: of the run.
        module: set up.
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
    others = []
    callbacks = list(trainer.callbacks)
    for family in _GROUPS:
        key, kind = family.lower(), getattr(families, family)
        found = [writer.write(each, key) for each in callbacks if isinstance(each, kind)]
        config[key] = (found or None) if family == "Outgoing" else (found[0] if found else None)
    config["objective"] = None if type(module.objective) is Plain else writer.write(module.objective, "objective")
    watching = [each for each in callbacks if isinstance(each, families.Monitor)]
    config["monitors"] = [writer.write(each, f"monitors.{type(each).__name__}") for each in watching]
    for each in callbacks:
        own = isinstance(each, RoundCheckpoint | ProcessTraffic | ProgressBar) or each is trainer.run_folder
        if not own and not isinstance(each, families.Policy | families.Monitor):
            others.append(writer.write(each, f"trainer.callbacks.{type(each).__name__}"))
    config["trainer"]["callbacks"] = others or None
    config["engine"] = trainer.engine
    for key, names in ((UNKNOWN_SETTINGS, writer.unknown), (NOT_MAKEABLE, writer.not_makeable)):
        if names:
            config[key] = names
    return config


def _optimizer(module: Any, writer: Writer) -> Any:
    """Write what the factory makes, a function without a name for example, as the optimizer's class and options."""
    made = module.client_optimizer
    factory = module.optimizer_factory
    if isinstance(factory, functools.partial | type) or len(made.groups) != 1:
        return writer.write(factory, "model.optimizer")
    names = inspect.signature(made.kind).parameters
    options = {key: value for key, value in made.groups[0].items() if key in names and key != "params"}
    return writer._made(made.kind, options, "model.optimizer")


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def _is_importable(thing: Any) -> bool:
    """Tell whether another process finds a class or function by its path."""
    name = getattr(thing, "__qualname__", "")
    if thing.__module__ == "__main__" or "." in name:
        return False
    return getattr(sys.modules.get(str(thing.__module__)), name, None) is thing


def _text(value: Any) -> str:
    """Return the `repr` without addresses in memory, which differ between equal runs; the class where it fails."""
    try:
        words = repr(value)
    except Exception:  # code of the user's, which must not end a run that never needs it
        words = f"<{_path(type(value))}>"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(words.split()))[:300]
