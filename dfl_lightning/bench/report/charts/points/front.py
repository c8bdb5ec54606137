"""Chart of each method's last score against its cost, with intervals of both, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.axes import per_cent_axis, rounded_for, score_bounds
from dfl_lightning.bench.report.charts.base import (
    Row,
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
from dfl_lightning.bench.report.charts.colours import method_colour
from dfl_lightning.bench.report.charts.line_ends import end_labels, said_after
from dfl_lightning.bench.report.costs import COSTS
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.over_seeds import last_score
from dfl_lightning.bench.stats.statistics import t_interval
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score


def accuracy_front(runs: Sequence[Run | Method], cost: str = "bytes") -> Any:
    """Draw the mean last score (the accuracy, for classes) against the mean cost of a run, a point for each method.

    Bars are the 95 % intervals of both means over seeds, by Student's t; a method with one seed has none. A line joins
    the methods that no other one beats in both means.

    Args:
        runs: runs, or methods.
        cost: `bytes`, `messages` or `time`.

    Raises:
        UserError: there is no such cost, or no run has recorded it and was evaluated on test data.
    """
    alt, methods = altair(), drawn(runs)
    kind = next((one for one in COSTS if one.name == cost), None)
    if kind is None:
        raise UserError(f"there is no cost '{cost}'; costs are: {', '.join(one.name for one in COSTS)}")
    score, names = score_of(methods), names_for_colours(methods)
    seeds = seed_fields(methods)
    rows = [row for method in methods if (row := _point(method, [kind.of(run) for run in method.runs], score, seeds))]
    if not rows:
        raise UserError(f"no run has recorded its {kind.words} and was evaluated on test data")
    compared = judged(rows, methods)
    least, largest = _limits(rows, score)
    beyond = []  # ends of intervals beyond the values that a score can have, drawn as arrows
    for row in rows:
        row["from"], row["to"] = max(row["low"], least), min(row["high"], largest)
        for end, at, angle in (("low", row["from"], 180), ("high", row["to"], 0)):
            if row[end] != at:
                beyond.append({"method": row["method"], "cost": row["cost"], "at": at, "angle": angle})
    domain = score_bounds([row[name] for row in compared for name in (score.field, "from", "to")], score)
    most = max(max(row["cost"], row["cost high"]) for row in rows) or 1.0
    x = alt.X("cost:Q").axis(title=kind.title, tickCount=6, grid=True, format=",~r").scale(domain=[0, most], nice=False)
    y = alt.Y(f"{score.field}:Q").axis(per_cent_axis(score.axis)).scale(domain=domain)
    base, colour = alt.Chart(data(rows)), method_colour(names)
    line = alt.Chart(data(_front(compared, score))).mark_line(interpolate="step-after", style="dotted", strokeWidth=1.2)
    across = base.mark_rule(strokeWidth=1.6, clip=True).encode(
        x=alt.X("cost low:Q"), x2=alt.X2("cost high:Q"), y=y, color=colour
    )
    along = base.mark_rule(strokeWidth=1.6, clip=True).encode(
        x=x, y=alt.Y("from:Q").scale(domain=domain).title(""), y2=alt.Y2("to:Q"), color=colour
    )
    arrows = (
        alt.Chart(data(beyond))
        .mark_point(shape="triangle", filled=True, opacity=1, size=70)
        .encode(
            x=x,
            y=alt.Y("at:Q").scale(domain=domain).title(""),
            angle=alt.Angle("angle:Q").scale(None),
            color=colour,
        )
    )
    tips = [alt.Tooltip("method:N"), alt.Tooltip("seeds:Q")]
    tips += [alt.Tooltip(f"{name}:Q", format=score.format) for name in (score.field, "low", "high")]
    tips += [alt.Tooltip(f"{name}:Q", format=",.4~r") for name in ("cost", "cost low", "cost high")]
    small = base.mark_point(shape="stroke", opacity=1, size=70, strokeWidth=1.6, clip=True)
    of_each = [
        small.transform_filter(f"isValid(datum['{name}'])").encode(
            x=alt.X(f"cost of {name}:Q"), y=alt.Y(f"{name}:Q").scale(domain=domain).title(""), color=colour
        )
        for name in seeds
    ]
    spots = base.mark_point(filled=True, opacity=1, size=80).encode(x=x, y=y, color=colour, tooltip=tips)
    labels = end_labels(
        rows,
        names,
        score.field,
        domain,
        "cost",
        height_for(names),
        lift=11,
        lines=_steps_of(_front(compared, score), score),
        most=most,
    )  # the names stand above the bars that leave a point
    return finished(
        alt.layer(line.encode(x=x, y=y), across, along, *([arrows] if beyond else []), *of_each, spots, *labels),
        height=height_for(names),
    )


def _point(method: Method, costs: Sequence[float], score: Score, seeds: Sequence[str]) -> Row | None:
    """Return a method's mean score and cost over seeds with their intervals; None if a run has not recorded one."""
    values = [last_score(run) * score.factor for run in method.runs]
    if not all(map(math.isfinite, [*values, *costs])):
        return None
    mean, spent = (math.fsum(numbers) / len(numbers) for numbers in (values, costs))
    (low, high), (least, most) = (t_interval(numbers) or (at, at) for numbers, at in ((values, mean), (costs, spent)))
    shown = {score.field: mean, "low": low, "high": high}
    return {
        "method": method.name,
        "cost": float(f"{spent:.5g}"),
        "cost low": max(0.0, float(f"{least:.5g}")),
        "cost high": float(f"{most:.5g}"),
        **{name: rounded_for(value, score) for name, value in shown.items()},
        "seeds": len(values),
        **of_seeds(method, [rounded_for(value, score) for value in values], seeds),
        **{
            f"cost of {name}": value
            for name, value in of_seeds(method, [float(f"{c:.5g}") for c in costs], seeds).items()
        },
        "after": said_after(method, score.number(mean / score.factor)),
    }


def _limits(rows: Sequence[Row], score: Score) -> tuple[float, float]:
    """Return the least and the largest value that the score can have, in the unit of the chart.

    If lower scores are better, the score is taken for an error that is at least 0, unless a method's score is below 0.
    """
    if score.percent:
        return 0.0, 100.0
    is_error = not score.higher_is_better and all(row[score.field] >= 0 for row in rows)
    return (0.0 if is_error else -math.inf), math.inf


def _steps_of(front: Sequence[Row], score: Score) -> list[Row]:
    """Return the corners of the line that joins the front, which names of methods keep clear of."""
    corners: list[Row] = []
    for row in front:
        if corners:
            corners.append({**corners[-1], "cost": row["cost"]})
        corners.append({"method": "", "cost": row["cost"], score.field: row[score.field]})
    return corners


def _front(rows: Sequence[Row], score: Score) -> list[Row]:
    """Return the points that no other point beats in both cost and score, the cheapest first."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["cost"], -score.merit(row[score.field]))):
        if not front or score.merit(row[score.field]) > score.merit(front[-1][score.field]):
            front.append(row)
    return [{name: row[name] for name in ("method", "cost", score.field)} for row in front]
