"""Chance level: the accuracy of the best constant prediction, one class for all test samples of all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import last_score, of_honest
from dfl_lightning.runs.reading import Run

ERRORS = 2
"""A score counts as above chance level only if it is higher by more than this many standard errors."""


def chance_level(methods: Sequence[Method]) -> float | None:
    """Compute the mean chance level over the runs of a task's methods, a share from 0 to 1; None if unknown."""
    levels = [level for m in methods for run in m.runs if (level := level_of(run)) is not None]
    return math.fsum(levels) / len(levels) if levels else None


def level_of(run: Run) -> float | None:
    """Compute the chance level of a run: the largest mean share of one class in the clients' test data.

    The mean is over the honest clients with test data, as for the score. The level is None if the test samples of each
    class are unknown, or if the score of the run is not the accuracy.
    """
    counts = _test_counts(run)
    return None if counts is None else float((counts / counts.sum(0)).mean(1).max())


def is_at_chance(method: Method) -> bool:
    """Return True if every run of the method ends at or below chance level.

    A run does so if its last score is at most two binomial standard errors of its test samples above the level.

    Args:
        method: with only those runs that are compared.
    """
    return bool(method.runs) and all(_is_at_chance(run) for run in method.runs)


def is_above_chance(method: Method) -> bool:
    """Return True if the mean last score is more than two standard errors over seeds above chance level.

    With one run, the standard error is the binomial one of its test samples. If the level or a score is unknown, the
    result is True.

    Args:
        method: with only those runs that are compared.
    """
    gaps = [_above(run) for run in method.runs]
    if len(gaps) < 2:
        return not is_at_chance(method)
    if not np.isfinite(gaps).all():
        return True
    return bool(np.mean(gaps) > ERRORS * np.std(gaps, ddof=1) / math.sqrt(len(gaps)))


def near_chance(methods: Sequence[Method]) -> tuple[list[Method], list[Method]]:
    """Find the methods of a task that end at chance level, and those that are not shown to be above it.

    Returns:
        Both lists, without methods that cannot be compared.
    """
    compared = comparable(methods)[0]
    at_chance = [method for method in compared if is_at_chance(method)]
    return at_chance, [method for method in compared if method not in at_chance and not is_above_chance(method)]


def bound_of(run: Run) -> float | None:
    """Return the largest mean score that counts as chance level: the level and two binomial standard errors.

    The bound is None if the level of the run is unknown, see `level_of`.
    """
    counts, level = _test_counts(run), level_of(run)
    if counts is None or level is None:
        return None
    return level + ERRORS * math.sqrt(level * (1 - level) * float((1 / counts.sum(0)).sum())) / counts.shape[1]


def _is_at_chance(run: Run) -> bool:
    bound = bound_of(run)
    return bound is not None and last_score(run) <= bound


def _above(run: Run) -> float:
    """Subtract the chance level from the last score; NaN if one of them is unknown."""
    level = level_of(run)
    return math.nan if level is None else last_score(run) - level


def _test_counts(run: Run) -> np.ndarray | None:
    """Return the number of test samples by class of the honest clients with test data, [classes, clients].

    The result is None if the run's split file has no such numbers, or if the score is not the accuracy.
    """
    counts = run.split.get("test_counts", np.empty(0))
    if counts.ndim != 2 or run.score.name != "acc":
        return None
    counts = of_honest(run, counts.T)
    counts = counts[:, counts.sum(0) > 0]
    return counts if counts.size else None
