"""The verdict at equal simulated seconds, bytes and trainings, where clients do not wait for each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.costs import SIMULATED, TRAININGS, largest_common_cost, score_at_cost, spent
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import pairing_of
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
    compared at the largest cost that all of them reach with a seed, by their means over seeds.

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
        most = _common_costs(compared, column)
        known = [(m, mean) for m in compared if not math.isnan(mean := _mean_at_cost(m, column, most))]
        if not known:
            continue
        score = known[0][0].score
        first, mean = max(known, key=lambda pair: score.merit(pair[1]))
        firsts.append(first.name)
        value = f"{score.number(mean)}{' %' * score.percent}"
        around = "" if brief else f" ({_ends(most, unit)}{of_unit}: {value})"
        words.append(f"{first.name} at equal {name}{around}")
    if not words:
        return []
    differs = " The order depends on what is counted." if len(set(firsts)) > 1 else ""
    return [
        "This compares models after the last round, at unequal seconds, bytes and trainings.",
        f"First by their means over seeds, without a test, are {enumerated(words)}.{differs}",
    ]


def _common_costs(methods: Sequence[Method], column: str) -> dict[Any, float]:
    """Return the largest cost that all methods reach, for each seed."""
    by_seed: dict[Any, list[Run]] = {}
    for run in (run for method in methods for run in method.runs):
        by_seed.setdefault(pairing_of(run), []).append(run)
    return {seed: largest_common_cost(runs, column) for seed, runs in by_seed.items()}


def _mean_at_cost(method: Method, column: str, most: Mapping[Any, float]) -> float:
    """Return the mean over seeds of the last score within the cost of a seed; NaN if a run has none by then."""
    scores = [score_at_cost(run, column, most[pairing_of(run)]) for run in method.runs]
    return float(np.mean([math.nan if score is None else score for score in scores]))


def _ends(costs: Mapping[Any, float], unit: float) -> str:
    ends = [f"{unit * end:.3g}" for end in (min(costs.values()), max(costs.values()))]
    return " to ".join(dict.fromkeys(ends))
