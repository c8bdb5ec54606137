"""The verdict at equal simulated seconds, bytes and trainings, where clients do not wait for each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.costs import SIMULATED, TRAININGS, spent
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import known_numbers
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.words import enumerated

_AXES = (
    (SIMULATED, "simulated seconds", 1.0, ""),
    ("bytes_received", "bytes", 1e-6, " MB"),
    (TRAININGS, "trainings", 1.0, ""),
)
"""Columns of metrics.csv, what they count, and the factor and name of their unit in sentences."""


def at_equal_costs(methods: Sequence[Method], brief: bool = False) -> list[str]:
    """Say that the verdict is after the last round, and which method is first at equal seconds, bytes and trainings.

    Without an asynchronous clock there are no sentences. With one, rounds last unequally long. Methods are
    compared at the largest cost that all of them reach, by their means over seeds.

    Args:
        methods: methods of a task.
        brief: leave out the costs and scores.
    """
    compared = comparable(methods)[0]
    if len(compared) < 2 or not any(TRAININGS in run.metrics for m in compared for run in m.runs):
        return []
    firsts, words = [], []
    for column, name, unit, of_unit in _AXES:
        if any(spent(run, column) is None for m in compared for run in m.runs):
            continue
        ends = [float(np.mean([_last(run, column) for run in m.runs])) for m in compared]
        most = min((end for end in ends if end > 0), default=0.0)
        known = [(m, mean) for m in compared if not math.isnan(mean := _mean_until(m, column, most))]
        if not known:
            continue
        score = known[0][0].score
        first, mean = max(known, key=lambda pair: score.merit(pair[1]))
        firsts.append(first.name)
        value = f"{score.number(mean)}{' %' * score.percent}"
        around = "" if brief else f" ({most * unit:.3g}{of_unit}: {value})"
        words.append(f"{first.name} at equal {name}{around}")
    if not words:
        return []
    differs = " The order depends on what is counted." if len(set(firsts)) > 1 else ""
    return [
        "This compares models after the last round, at unequal seconds, bytes and trainings.",
        f"First by their means over seeds, without a test, are {enumerated(words)}.{differs}",
    ]


def _last(run: Run, column: str) -> float:
    costs = spent(run, column)
    return float(costs[-1]) if costs is not None and len(costs) else 0.0


def _mean_until(method: Method, column: str, most: float) -> float:
    """Return the mean over seeds of the last score at a cost of at most `most`; NaN if a run has none by then."""
    return float(np.mean([_score_until(run, column, most) for run in method.runs]))


def _score_until(run: Run, column: str, most: float) -> float:
    costs, scores = spent(run, column), known_numbers(run, run.score.column)
    if costs is None:
        return math.nan
    rounds = run.metrics["round"].astype(int).tolist()
    until = [scores[r] for r, cost in zip(rounds, costs.tolist(), strict=True) if r in scores and cost <= most * _ABOVE]
    return until[-1] if until else math.nan


_ABOVE = 1 + 1e-9
"""A run that ends at the compared cost reaches it, in spite of the rounding of a mean."""
