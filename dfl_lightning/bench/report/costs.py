"""Costs of a run for a client: bytes, messages, and simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dfl_lightning.bench.report.over_seeds import known_numbers, received
from dfl_lightning.runs.reading import Run

SIMULATED = "simulated_seconds"
"""The optional column of metrics.csv with the simulated seconds until the end of a round."""

TRAININGS = "trainings"
"""The column of metrics.csv with the trainings of a client since the start; runs on an asynchronous clock have it."""

_MESSAGES = ("models_received", "proxies_received", "messages_received")


@dataclass(frozen=True)
class CostOfRun:
    """A kind of cost of a whole run.

    Attributes:
        name: identifier, used in file names.
        words: what is counted, for sentences.
        title: title of an axis.
        of: function that returns the cost of a run; NaN if the run has not recorded it.
    """

    name: str
    words: str
    title: str
    of: Callable[[Run], float]


def _megabytes(run: Run) -> float:
    return received(run) * 1e-6


def messages(run: Run) -> float:
    """Count models, parts of models and other messages received by a client in the whole run, mean over clients.

    The result is NaN if the run has not counted received models.
    """
    if _MESSAGES[0] not in run.metrics:
        return math.nan
    return float(sum(np.nansum(run.metrics[name]) for name in _MESSAGES if name in run.metrics))


def spent(run: Run, column: str) -> np.ndarray | None:
    """Return a cost from the start of a run until the end of each round, mean over clients; None if it is unknown.

    Args:
        run: finished or not.
        column: `SIMULATED`, `TRAININGS`, or a column of metrics.csv with the cost of each round. Without an
            asynchronous clock each active client of a round trains once.
    """
    if column == TRAININGS and column not in run.metrics:
        return np.nancumsum(run.metrics["active"]) / run.num_clients if "active" in run.metrics else None
    if column not in run.metrics:
        return None
    values = run.metrics[column]
    return values if column in (SIMULATED, TRAININGS) else np.nancumsum(values)


def largest_common_cost(runs: Iterable[Run], column: str) -> float:
    """Return the largest cost that all runs reach by their last evaluation; runs without any cost are left out.

    Args:
        runs: finished runs.
        column: as for `spent`; a run that has not recorded it is left out.
    """
    ends = [costs[-1] for run in runs if (costs := _costs_and_scores(run, column)[0]).size]
    return float(min((end for end in ends if end > 0), default=0.0))


def score_at_cost(run: Run, column: str, most: float) -> float | None:
    """Return the score of the last evaluation at a cost of at most `most`, mean over clients; None if there is none.

    Args:
        run: finished or not.
        column: as for `spent`.
        most: the cost, in the unit of the column.
    """
    costs, scores = _costs_and_scores(run, column)
    until = scores[costs <= most * (1 + 1e-9)]  # a sum of means may exceed the compared cost by its rounding
    return float(until[-1]) if until.size else None


def _costs_and_scores(run: Run, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs and scores of the evaluated rounds; both are empty if the run has not recorded the cost."""
    costs, scores = spent(run, column), known_numbers(run, run.score.column)
    if costs is None:
        return np.array([]), np.array([])
    at = np.flatnonzero(np.isin(run.metrics["round"], list(scores)))
    return costs[at], np.array(list(scores.values()))


def _simulated(run: Run) -> float:
    column = run.metrics.get(SIMULATED, np.array([]))
    return float(column[-1]) if len(column) else math.nan


COSTS = (
    CostOfRun("bytes", "bytes", "MB received by a client", _megabytes),
    CostOfRun("messages", "messages", "messages received by a client", messages),
    CostOfRun("time", "simulated time", "simulated seconds", _simulated),
)
