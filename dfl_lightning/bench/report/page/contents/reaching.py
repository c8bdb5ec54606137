"""Costs of reaching a score: of each run the rounds in which its score reached a new height, and what it had spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dfl_lightning.bench.report.comparable import best_first, for_charts
from dfl_lightning.bench.report.costs import SIMULATED, spent
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import from_one, known_numbers
from dfl_lightning.bench.report.page.sections import heading
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.score import Score

_FINE, _COARSE = 300, 20
"""Least number of steps between levels, and of the levels among which the first one is chosen, in the scores' range."""

_COSTS = (("mb", "bytes_received", 1e-6), ("simulated", SIMULATED, 1.0))
"""Costs other than rounds: their names on the page, their columns of metrics.csv, and factors to their units."""


def reaching_of_page(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return for each task what its methods had spent when their scores reached each level.

    A level is a multiple of `unit`. A run has only the rounds whose score reached a level that none before had.

    Args:
        methods: methods of the page.

    Returns:
        A dict for each task with a number in metrics.csv: `where` (its name), `label` and `percent` of its score,
        `sign` (-1 if lower scores are better), `unit`, `step` (between levels that the page offers), `first` (the
        level that it shows first), and `methods`, from best to worst. Each method has a `name` and `runs`; a run has
        its `seed`, and lists of equal lengths: `level`, the best score until then in units, times the sign; `round`,
        counted from 1; and, if known, `mb` and `simulated`.
    """
    found = []
    for task in sorted({method.task for method in methods}):
        of_task = [method for method in methods if method.task == task]
        score = of_task[0].score
        scores = {run: _finite(run) for method in of_task for run in method.runs}
        values = [value for of_run in scores.values() for value in of_run.values()]
        if not values:
            continue
        span = 100.0 if score.percent else (max(values) - min(values)) or abs(values[0]) or 1.0
        unit = 0.1 if score.percent else _round_step(span / _FINE)
        step = 5.0 if score.percent else _round_step(span / _COARSE)
        entries = [
            {
                "name": method.name,
                "runs": [{"seed": seed_of(run), **_records(run, scores[run], unit)} for run in method.runs],
            }
            for method in best_first(for_charts(of_task))
        ]
        found.append(
            {
                "where": heading(of_task, methods),
                "label": score.label,
                "percent": score.percent,
                "sign": int(score.merit(1.0)),
                "unit": unit,
                "step": step,
                "first": _first(entries, score, unit, step),
                "methods": entries,
            }
        )
    return found


def _finite(run: Run) -> dict[int, float]:
    """Return the run's finite scores by round, in the unit of charts."""
    known = known_numbers(run, run.score.column)
    return {r: value * run.score.factor for r, value in sorted(known.items()) if math.isfinite(value)}


def _round_step(width: float) -> float:
    """Return the largest of 1, 2 and 5 times powers of ten that is at most this wide.

    Examples:
        >>> _round_step(0.03), _round_step(7.0)
        (0.02, 5.0)
    """
    power = 10.0 ** math.floor(math.log10(width))
    return float(f"{max(factor for factor in (1, 2, 5) if factor * power <= width * (1 + 1e-9)) * power:.6g}")


def _records(run: Run, scores: Mapping[int, float], unit: float) -> dict[str, list[float]]:
    """Return the rounds in which the score reached a new level, with what a client had received by then."""
    costs = {}
    for name, column, factor in _COSTS:
        values = spent(run, column)
        if values is not None:
            costs[name] = dict(zip(run.metrics["round"].astype(int).tolist(), (values * factor).tolist(), strict=True))
    found: dict[str, list[float]] = {"level": [], "round": [], **{name: [] for name in costs}}
    for r, value in scores.items():
        level = math.floor(run.score.merit(value) / unit + 1e-6)
        if found["level"] and level <= found["level"][-1]:
            continue
        found["level"].append(level)
        found["round"].append(from_one(r))
        for name, until in costs.items():
            found[name].append(float(f"{until[r]:.5g}"))
    return found


def _first(entries: Sequence[dict[str, Any]], score: Score, unit: float, step: float) -> float:
    """Choose the level that is shown first: the hardest multiple of `step` that two methods reach with all seeds.

    If there is one method only, it is the hardest level that this one reaches.
    """
    ends = [
        min(run["level"][-1] for run in entry["runs"]) for entry in entries if all(r["level"] for r in entry["runs"])
    ]
    reached = sorted(ends)[-2:] or [max(run["level"][-1] for e in entries for run in e["runs"] if run["level"])]
    hardest = math.floor(reached[0] * unit / step + 1e-6) * step
    return float(f"{abs(score.merit(hardest)) if hardest else 0.0:.6g}")
