"""Decentralized federated learning as one modular Lightning trainer.

>>> from dfl_lightning import DFLModule, DFLTrainer, callbacks, data, models
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dfl_lightning._version import __version__ as __version__

if TYPE_CHECKING:
    from dfl_lightning import callbacks, data, models, tasks
    from dfl_lightning.bench import report
    from dfl_lightning.bench.study.reading import read_study
    from dfl_lightning.module import DFLModule
    from dfl_lightning.round.callback import RoundCallback
    from dfl_lightning.round.record import Round
    from dfl_lightning.runs.reading import read_run
    from dfl_lightning.trainer import DFLTrainer
    from dfl_lightning.utils.errors import UserError

__all__ = [
    "DFLModule",
    "DFLTrainer",
    "LinkMemory",
    "Links",
    "Round",
    "RoundCallback",
    "UserError",
    "callbacks",
    "data",
    "models",
    "read_run",
    "read_study",
    "report",
    "tasks",
]

_HOMES = {
    "DFLModule": "module",
    "DFLTrainer": "trainer",
    "LinkMemory": "links",
    "Links": "links",
    "Round": "round",
    "RoundCallback": "round",
    "UserError": "utils.errors",
    "read_run": "runs.reading",
    "read_study": "bench.study.reading",
}


def __getattr__(name: str) -> Any:
    # On first use: torch and Lightning take seconds to load, and `cli.main` has something to do before.
    if name not in __all__:
        raise AttributeError(f"module 'dfl_lightning' has no attribute '{name}'")
    if name == "report":
        return importlib.import_module("dfl_lightning.bench.report")
    home = importlib.import_module(f"dfl_lightning.{_HOMES.get(name, name)}")
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
