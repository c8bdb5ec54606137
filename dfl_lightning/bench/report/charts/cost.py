"""Charts of the score against its cost: bytes received, simulated time, or trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.axes import cut, log_ticks, per_cent_axis, rounded_for, score_bounds, typical
from dfl_lightning.bench.report.charts.base import (
    altair,
    data,
    drawn,
    finished,
    height_for,
    judged,
    of_seeds,
    score_of,
    seed_fields,
)
from dfl_lightning.bench.report.charts.colours import faintness, method_colour, method_dash
from dfl_lightning.bench.report.charts.line_ends import end_labels, ended
from dfl_lightning.bench.report.costs import SIMULATED, TRAININGS, spent
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.over_seeds import from_one, held, known_numbers, thinned
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


def accuracy_by_bytes(runs: Sequence[Run | Method]) -> Any:
    """Draw the test score (the accuracy, for classes) against the megabytes received by then.

    A method that receives nothing is a horizontal line.

    Raises:
        UserError: no run was evaluated on test data.
    """
    return _accuracy_by(runs, "bytes_received", 1e-6, "MB received by a client, logarithmic", log=True)


def accuracy_by_time(runs: Sequence[Run | Method]) -> Any:
    """Draw the test score (the accuracy, for classes) against simulated seconds.

    Raises:
        UserError: no run has simulated seconds.
    """
    methods = [m for m in drawn(runs) if any(SIMULATED in run.metrics for run in m.runs)]
    if not methods:
        raise UserError(f"no run has the column {SIMULATED}")
    return _accuracy_by(methods, SIMULATED, 1.0, "simulated seconds", log=False)


def accuracy_by_trainings(runs: Sequence[Run | Method]) -> Any:
    """Draw the test score (the accuracy, for classes) against the trainings of a client, mean over clients.

    Raises:
        UserError: no run was evaluated on test data.
    """
    return _accuracy_by(runs, TRAININGS, 1.0, "trainings of a client", log=False)


def _accuracy_by(runs: Sequence[Run | Method], column: str, unit: float, title: str, log: bool) -> Any:
    """Draw the test score against a cost.

    Args:
        runs: runs, or methods.
        column: column of metrics.csv with the cost.
        unit: factor from the column to the unit of the axis.
        title: title of the horizontal axis.
        log: draw a logarithmic axis.
    """
    alt, methods = altair(), drawn(runs)
    names, rows, flat, ends, score = names_for_colours(methods), [], [], [], score_of(methods)
    for method in methods:
        curve = _curve(method, column, unit, seed_fields(methods))
        if not curve:
            continue
        last = curve[-1]
        value = last[score.field] / score.factor
        if last["cost"] > 0:
            rows += [row for row in curve if row["cost"] > 0 or not log]
            ends.append({**last, **ended(method, score.field, value)})
        else:
            flat.append({**last, **ended(method, score.field, value, ", 0 MB")})
    if not rows and not flat:
        raise UserError("no run was evaluated on test data")
    least = min((row["cost"] for row in rows), default=0.1 if log else 0.0)
    most = max((row["cost"] for row in rows), default=1.0)
    domain_x = [least, most if most > least else least * 2 + 1]
    for row in flat:
        row["cost"], row["from"] = domain_x[1], domain_x[0]
    compared = judged([*rows, *flat], methods)
    values = typical((row[score.field] for row in compared if "from" not in row), score)
    domain = score_bounds([*values, *(row[score.field] for row in compared if "from" in row)], score)
    scale = {"type": "log", "base": 10} if log else {}
    x = (
        alt.X("cost:Q")
        .axis(
            title=title,
            format=",~r" if log else ",f",
            **({"values": log_ticks(*domain_x)} if log else {"tickCount": 5}),
        )
        .scale(domain=domain_x, nice=False, **scale)
    )
    axis = cut(score.axis, (row[score.field] for row in [*rows, *flat]), domain)
    y = alt.Y(f"{score.field}:Q").axis(per_cent_axis(axis)).scale(domain=domain)
    colour = method_colour(names)
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("cost:Q", format=",.2f", title=title.partition(",")[0]),
    ]
    tips.append(alt.Tooltip(f"{score.field}:Q", format=score.format))
    layers = []
    if rows:
        base = alt.Chart(data(rows))
        line = base.mark_line(strokeWidth=2, clip=True).encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=method_dash(names),
            order=alt.Order("round:Q"),
            opacity=faintness(methods),
        )
        layers += [line, base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(x=x, y=y, tooltip=tips)]
    if flat:
        start = alt.X("from:Q").scale(domain=domain_x, nice=False, **scale)
        rule = alt.Chart(data(flat)).mark_rule(strokeWidth=2, clip=True)
        look = {"color": colour, "strokeDash": method_dash(names), "opacity": faintness(methods)}
        layers.append(rule.encode(x=start, x2=alt.X2("cost:Q"), y=y, **look))
    lines = [*rows, *({**row, "cost": at} for row in flat for at in domain_x)]
    layers += end_labels(
        [*ends, *flat],
        names,
        score.field,
        domain,
        "cost",
        height_for(names),
        ends=domain_x if log else None,
        lines=lines,
    )
    return finished(alt.layer(*layers), height=height_for(names))


def _curve(method: Method, column: str, unit: float, seeds: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with the mean cost until a round and the mean score after it, over seeds.

    Runs without an evaluation in that round are left out, unless they had finished before; see `held`.

    Args:
        method: with a run for each seed.
        column: column of metrics.csv with the cost.
        unit: factor from the column to the unit of the axis.
        seeds: fields of the rows with the scores of single seeds.
    """
    score = method.score
    series: list[dict[int, tuple[float, float]]] = []
    for run in method.runs:
        series.append({})
        costs = spent(run, column)
        if costs is None or score.column not in run.metrics:
            continue
        until = dict(zip(run.metrics["round"].astype(int).tolist(), (costs * unit).tolist(), strict=True))
        scores = known_numbers(run, score.column)
        series[-1].update({r: (until[r], value * score.factor) for r, value in scores.items()})
    rounds = sorted({r for points in series for r in points})
    series = [held(run, points, rounds) for run, points in zip(method.runs, series, strict=True)]
    rounds = [rounds[i] for i in thinned(len(rounds))]
    means = {r: np.mean([points[r] for points in series if r in points], axis=0) for r in rounds}
    return [
        {
            "method": method.name,
            "round": from_one(r),
            "cost": float(f"{means[r][0]:.5g}"),
            score.field: rounded_for(means[r][1], score),
            **of_seeds(method, [rounded_for(points[r][1], score) if r in points else None for points in series], seeds),
        }
        for r in rounds
    ]
