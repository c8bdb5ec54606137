"""Several fits in one process: a fit with the same objects continues the last one; any other begins anew."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.run.fit import Fit
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.utils.code.constructor_arguments import note_assigned
from dfl_lightning.utils.words import counted

_PLAIN = (type(None), bool, int, float, str, list, dict, set, tuple, torch.Tensor, np.ndarray, Links, LinkMemory)
"""Types of attributes that a fit may change in place, and that can be copied."""

_NAME = "_attributes_of_fits"
"""The attribute in which an object keeps its `Attributes`; in the object itself, as their values may refer to it."""


@dataclass
class Attributes:
    """The attributes of an object by name, before and after fits.

    Attributes:
        before: copies of the attributes before its first fit.
        after: the attributes after its last fit.
    """

    before: dict[str, Any]
    after: dict[str, Any] = field(default_factory=dict)


def begin_fit(trainer: RunTrainer, module: RunModule, datamodule: object, parts: Sequence[object]) -> list[str]:
    """Continue the module's last fit, or reset the module and the parts to their state before any fit.

    Args:
        trainer: the trainer that is about to fit.
        module: the module that will be fitted.
        datamodule: the clients' data.
        parts: the objects that rounds change: policies, monitors and some callbacks of the trainer, and the objective.

    Returns:
        A sentence for the banner if the fit has no checkpoint and is not the module's first one; otherwise empty.
    """
    fit = Fit(trainer, datamodule, parts)
    rounds = module.bank.boundary.round if module.is_set_up else 0
    said = []
    if fit.continues(module.last_fit):
        said.append(f"continues the last fit of this trainer, which has done {counted(rounds, 'round')}")
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= rounds:
            said[0] += "; none is left: raise trainer.fit_loop.max_epochs, or make a new DFLTrainer to begin again"
    else:
        begin_anew(parts)
        module.begin_anew()
        for thing in (*parts, datamodule):
            note_assigned(thing)
        said.append(
            "this module was fitted before with another trainer, or other policies or data: this fit begins at round "
            "0; ckpt_path=<run folder> would continue a run"
        )
    module.last_fit = fit
    return said if rounds and trainer.resumed_from is None else []


def begin_anew(parts: Iterable[object]) -> None:
    """Undo what earlier fits did to attributes of policies, objectives and callbacks.

    A value that was assigned to an attribute after the last fit is kept: it is a setting of the next one.

    Args:
        parts: objects that may have taken part in an earlier fit.
    """
    for part in parts:
        now = vars(part)
        kept: Attributes = now.pop(_NAME, None) or Attributes({})
        for name in [name for name in now if name in kept.after and now[name] is kept.after[name]]:
            if name in kept.before:
                now[name] = _copied(kept.before[name])
            else:
                del now[name]
        now[_NAME] = Attributes({name: _copied(value) for name, value in now.items()})


def end_fit(parts: Iterable[object]) -> None:
    """Remember the attributes that a fit leaves behind, to tell them from later assignments.

    Args:
        parts: objects that took part in it.
    """
    for part in parts:
        now = vars(part)
        if _NAME in now:  # missing if the fit was refused before it began
            now[_NAME].after = {name: value for name, value in now.items() if name != _NAME}


def _copied(value: Any) -> Any:
    """Copy plain data; other objects, such as networks and files, stay the same ones."""
    return copy.deepcopy(value) if isinstance(value, _PLAIN) else value
