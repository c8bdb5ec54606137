"""The spread of the clients' last scores: least, tenth percentile, median and largest, by method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import last_scores
from dfl_lightning.bench.stats.words import shared_reference
from dfl_lightning.utils.words import counted

MOST_SHOWN = 8
"""With more methods than this the table of the spread is folded."""

_PERCENTILES = (0, 10, 50, 100)


def spread_table(methods: Sequence[Method]) -> dict[str, Any] | None:
    """Return the table of the spread over clients; None if no run of the task was evaluated on test data.

    The numbers are means over seeds of each run's percentiles, linearly interpolated.

    Args:
        methods: methods of a task, from best to worst.

    Returns:
        `rows`, with the `method` and a text for each number in `cells`: percentiles 0, 10, 50 and 100, and the standard
        deviation over clients; `percent`, True if they are in per cent; `higher`, True if higher scores are better;
        `is_open`, False if there are many methods; `several`, True if a method has several seeds; and `worst`, how many
        clients the worst tenth is, in words.
    """
    means: dict[str, list[float]] = {}
    for method in methods:
        of_runs = [_numbers(scores) for run in method.runs if len(scores := last_scores(run))]
        if of_runs:
            means[method.name] = np.mean(of_runs, axis=0).tolist()
    if not means:
        return None
    score, reference = methods[0].score, shared_reference([numbers[2] for numbers in means.values()])

    def cell(value: float) -> str:
        return score.number(value, reference) if math.isfinite(value) else "not finite"

    rows = [{"method": name, "cells": list(map(cell, numbers))} for name, numbers in means.items()]
    several = any(len(method.runs) > 1 for method in methods)
    return {
        "rows": rows,
        "percent": score.percent,
        "higher": score.higher_is_better,
        "is_open": len(methods) <= MOST_SHOWN,
        "several": several,
        "worst": worst_of(methods) or "tenth of the clients of each run, rounded up to whole clients",
    }


def worst_of(methods: Sequence[Method]) -> str:
    """Say how many clients the worst tenth is, as "2 of 12 clients"; empty if that differs between runs.

    Args:
        methods: methods of a task.
    """
    numbers = {len(scores) for method in methods for run in method.runs if len(scores := last_scores(run))}
    if len(numbers) != 1:
        return ""
    (number,) = numbers
    return f"{math.ceil(number / 10)} of {counted(number, 'client')}"


def _numbers(scores: np.ndarray) -> list[float]:
    """Return the percentiles and the standard deviation of a run, as in metrics.csv; NaN if a loss is not finite."""
    if not np.isfinite(scores).all():
        return [math.nan] * (len(_PERCENTILES) + 1)
    return [*np.percentile(scores, _PERCENTILES).tolist(), float(scores.std())]
