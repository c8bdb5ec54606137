"""What a run costs a client, in the units that runs know: bytes, messages, and simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dfl_lightning.bench.report.over_seeds import received
from dfl_lightning.runs.reading import Run

SIMULATED = "simulated_seconds"
"""The column of metrics.csv with the simulated seconds until the end of a round, where a run has one."""

_MESSAGES = ("models_received", "proxies_received", "messages_received")


@dataclass(frozen=True)
class CostOfRun:
    """A cost of a whole run.

    Attributes:
        name: for files.
        words: what is counted.
        title: of an axis.
        of: the number of a run; NaN where the run does not know it.
    """

    name: str
    words: str
    title: str
    of: Callable[[Run], float]


def _megabytes(run: Run) -> float:
    return received(run) * 1e-6


def messages(run: Run) -> float:
    """Models, parts of models and other messages that a client received in the whole run, mean over clients.

    Args:
        run: any; NaN where it has counted no models.
    """
    if _MESSAGES[0] not in run.metrics:
        return math.nan
    return float(sum(np.nansum(run.metrics[name]) for name in _MESSAGES if name in run.metrics))


def _simulated(run: Run) -> float:
    column = run.metrics.get(SIMULATED, np.array([]))
    return float(column[-1]) if len(column) else math.nan


COSTS = (
    CostOfRun("bytes", "bytes", "MB received by a client", _megabytes),
    CostOfRun("messages", "messages", "messages received by a client", messages),
    CostOfRun("time", "simulated time", "simulated seconds", _simulated),
)
