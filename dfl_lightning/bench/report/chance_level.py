"""The accuracy that the best constant prediction would reach: one class for all test samples of all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import last_score, of_honest
from dfl_lightning.runs.reading import Run

ERRORS = 2
"""Standard errors by which a mean must be above chance level, to be called above it."""


def chance_level(methods: Sequence[Method]) -> float | None:
    """Return the mean chance level over the runs of methods, a share; None where it is not known.

    Args:
        methods: of a task.
    """
    known = [level for m in methods for run in m.runs if (level := level_of(run)) is not None]
    return math.fsum(known) / len(known) if known else None


def level_of(run: Run) -> float | None:
    """Return the largest mean share of a class in the clients' test data; None where it is not known.

    The mean is over the honest clients with test data, as that of the score is.

    Args:
        run: any; with a score that is not the accuracy there is no such level.
    """
    counts = _test_counts(run)
    return None if counts is None else float((counts / counts.sum(0)).mean(1).max())


def is_at_chance(method: Method) -> bool:
    """Return whether every run of a method is at or below chance level, as far as its test samples tell.

    A run is so if its last score is at most two binomial standard errors above the level.

    Args:
        method: with the runs that are compared.
    """
    return bool(method.runs) and all(_is_at_chance(run) for run in method.runs)


def is_above_chance(method: Method) -> bool:
    """Return whether the mean last score is more than two standard errors over seeds above chance level.

    With one run the standard error is the binomial one of its test samples. Where the level or a score is not known,
    nothing is doubted.

    Args:
        method: with the runs that are compared.
    """
    gaps = [_above(run) for run in method.runs]
    if len(gaps) < 2:
        return not is_at_chance(method)
    if not np.isfinite(gaps).all():
        return True
    return bool(np.mean(gaps) > ERRORS * np.std(gaps, ddof=1) / math.sqrt(len(gaps)))


def near_chance(methods: Sequence[Method]) -> tuple[list[Method], list[Method]]:
    """Find the methods that end at chance level, and those that the seeds do not show to be above it.

    Args:
        methods: of a task.
    """
    kept = comparable(methods)[0]
    at = [method for method in kept if is_at_chance(method)]
    return at, [method for method in kept if method not in at and not is_above_chance(method)]


def _is_at_chance(run: Run) -> bool:
    counts, level = _test_counts(run), level_of(run)
    if counts is None or level is None:
        return False
    error = math.sqrt(level * (1 - level) * float((1 / counts.sum(0)).sum())) / counts.shape[1]
    return _above(run) <= ERRORS * error


def _above(run: Run) -> float:
    """Return by how much the last score is above chance level; NaN where one of them is not known."""
    level = level_of(run)
    return math.nan if level is None else last_score(run) - level


def _test_counts(run: Run) -> np.ndarray | None:
    """Return the test samples of each class of the honest clients with test data, [classes, clients], if known."""
    counts = run.split.get("test_counts", np.empty(0))
    if counts.ndim != 2 or run.score.name != "acc":
        return None
    found = of_honest(run, counts.T)
    found = found[:, found.sum(0) > 0]
    return found if found.size else None
