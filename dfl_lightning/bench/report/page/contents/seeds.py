"""The scores of each seed: a table, dots for the verdict's table, and whether the lead is due to one seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import last_score, last_scores, pairing_of
from dfl_lightning.bench.stats.leave_one_out import LeaveOneOut, leave_one_out
from dfl_lightning.bench.stats.words import shared_reference
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import enumerated

DOTS = 84
"""Width in pixels of the dots of a method's seeds."""


def scores_by_seed(method: Method) -> dict[Any, float]:
    """Return the last score of each run with test data, by seed; NaN if a client's loss is not finite.

    Args:
        method: with a run for each seed.
    """
    return {seed_of(run): last_score(run) for run in method.runs if len(last_scores(run))}


class SeedDot(NamedTuple):
    """The dot of a seed in the verdict's table.

    Attributes:
        at: pixels from the left.
        seed: name of the seed.
        value: its score, in the digits of the table.
    """

    at: float
    seed: str
    value: str


def dots(methods: Sequence[Method]) -> dict[str, list[SeedDot]]:
    """Return the dots of each method's seeds, by the full name of the method.

    All methods of the task have one scale, from the least to the largest score of a seed.

    Args:
        methods: methods of a task.
    """
    scores = {m.full_name: {s: v for s, v in scores_by_seed(m).items() if math.isfinite(v)} for m in methods}
    known = [value for values in scores.values() for value in values.values()]
    if not known:
        return {name: [] for name in scores}
    least, span = min(known), (max(known) - min(known)) or 1.0
    score, reference = methods[0].score, shared_reference(known)

    def dot(seed: Any, value: float) -> SeedDot:
        at = round(4 + (DOTS - 8) * (value - least) / span, 1)
        return SeedDot(at, f"seed {seed}", score.number(value, reference))

    return {name: [dot(seed, value) for seed, value in values.items()] for name, values in scores.items()}


def seeds_table(methods: Sequence[Method]) -> dict[str, Any] | None:
    """Return the table of the scores by seed; None if no method of the task has several seeds.

    Args:
        methods: methods of a task, from best to worst, with only those runs that are compared where there are some.

    Returns:
        `seeds`, the heads of the columns; and `rows`, with the `method`, a `value` and its `gap` to the best method
        with the same seed and test data in each column, and `without`, the least and the largest mean gap if a seed is
        left out. Texts are empty where there is nothing to say.
    """
    if all(len(m.runs) < 2 for m in methods):
        return None
    seeds = list(dict.fromkeys(seed_of(run) for m in methods for run in m.runs))
    score, best = methods[0].score, methods[0]
    of_best = {pairing_of(run): last_score(run) for run in best.runs}
    of_methods = [scores_by_seed(method) for method in methods]
    reference = shared_reference([value for values in of_methods for value in values.values()])
    rows = []
    for method, values in zip(methods, of_methods, strict=True):
        gaps = {
            seed_of(run): last_score(run) - of_best[pairing_of(run)]
            for run in method.runs
            if method is not best and pairing_of(run) in of_best
        }
        rows.append(
            {
                "method": method.name,
                "cells": [_cell(values.get(seed), gaps.get(seed), score, reference) for seed in seeds],
                "without": _without_one([gap for gap in gaps.values() if math.isfinite(gap)], score, reference),
            }
        )
    return {"seeds": [f"seed {seed}" for seed in seeds], "best": best.name, "rows": rows}


def _cell(value: float | None, gap: float | None, score: Score, reference: float) -> dict[str, str]:
    if value is None:
        return {"value": "", "gap": ""}
    text = score.number(value, reference) if math.isfinite(value) else "not finite"
    return {"value": text, "gap": "" if gap is None or not math.isfinite(gap) else score.signed(gap, reference)}


def _without_one(gaps: Sequence[float], score: Score, reference: float) -> str:
    """Write the least and the largest mean of the gaps if one of them is left out; empty with fewer than two."""
    if len(gaps) < 2:
        return ""
    means = [(math.fsum(gaps) - gap) / (len(gaps) - 1) for gap in gaps]
    return f"{score.signed(min(means), reference)} to {score.signed(max(means), reference)}"


def about_lead(methods: Sequence[Method], brief: bool = False) -> str:
    """Say whether the lead of the best method of a task is due to one seed; empty with fewer than two common seeds.

    Args:
        methods: methods of a task.
        brief: say it only if the lead is due to one seed.
    """
    compared = comparable(methods)[0]
    finite = [m for m in compared if all(map(math.isfinite, scores_by_seed(m).values()))]
    values = {m.name: {pairing_of(run): last_score(run) for run in m.runs if len(last_scores(run))} for m in finite}
    found = leave_one_out(values, bool(finite) and not finite[0].score.higher_is_better)
    if found is None:
        return ""
    score, whole = finite[0].score, found.whole
    if brief:
        return (
            f"{whole.first}'s lead is due to one seed: {_without_it(found)}." if whole.margin and found.changes else ""
        )
    if not whole.margin:
        return f"Over their common seeds {whole.first} and {whole.second} have the same mean."
    if found.changes:
        due = f"{whole.first} has the {_best(score)} is due to one seed"
        return f"Leave one seed out: that {due}, since {_without_it(found)}."
    seed, least = found.least
    return (
        f"Leave one seed out: {whole.first} keeps the {_best(score)} "
        f"whichever of the {len(found.without)} common seeds it is. "
        f"Its lead is smallest without seed {seed[0]}: {score.distance(least.margin)} over {least.second}."
    )


def _without_it(found: LeaveOneOut) -> str:
    return enumerated([f"without seed {seed[0]} {lead.first} has it" for seed, lead in found.changes.items()])


def _best(score: Score) -> str:
    return f"{'highest' if score.higher_is_better else 'lowest'} mean"
