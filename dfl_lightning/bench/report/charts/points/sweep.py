"""Charts of sweeps: the score against a numeric setting, and a heat map for two settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.axes import per_cent_axis, rounded_for, score_bounds
from dfl_lightning.bench.report.charts.base import Row, altair, data, finished, of_seeds, score_of, seed_fields
from dfl_lightning.bench.report.charts.colours import colour_places, dash_at, method_colour
from dfl_lightning.bench.report.charts.line_ends import end_labels, with_rim
from dfl_lightning.bench.report.methods import Method, as_methods
from dfl_lightning.bench.report.over_seeds import last_score
from dfl_lightning.bench.report.settings.sweeps import Grid, grids, short, sweeps
from dfl_lightning.bench.stats.statistics import t_interval
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

_HEIGHT, _CELL = 320, 46
"""Height of the chart of lines, and of a row of the heat map."""

_SPREAD, _APART = 8, 0.012
"""Ratio of the largest to the least positive value of a setting from which the axis is logarithmic, and the distance of
the points of two lines with one value, as a share of the width."""


def score_by_setting(runs: Sequence[Run | Method], setting: str = "") -> Any:
    """Draw the mean last score against a numeric setting, a line for methods that differ in nothing else.

    Bars are the 95 % intervals over seeds, by Student's t; small points are single seeds.

    Args:
        runs: runs, or methods, of one task.
        setting: dotted name, such as `selection.k`; default: the first one that was swept.

    Raises:
        UserError: no numeric setting, or not this one, was swept.
    """
    alt, methods = altair(), as_methods(runs)
    found = sweeps(methods)
    if not found or (setting and setting not in found):
        swept = f"; swept are: {', '.join(found)}" if found else ""
        raise UserError(f"{setting or 'no numeric setting'} has two values or more among methods alike{swept}")
    setting = setting or next(iter(found))
    score, seeds = score_of(methods), seed_fields(methods)
    rows: list[Row] = []
    for line in found[setting]:
        of_line = [_point(line.name, setting, value, method, score, seeds) for value, method in line.methods.items()]
        rows += [row for row in of_line if row is not None]
    if not rows:
        raise UserError("no run was evaluated on test data")
    names = list(dict.fromkeys(row["line"] for row in rows))
    shown = [row[name] for row in rows for name in (score.field, "low", "high", *seeds)]
    domain = score_bounds([value for value in shown if value is not None], score)
    least, largest = (0.0, 100.0) if score.percent else (-math.inf, math.inf)
    for row in rows:
        row["from"], row["to"] = max(row["low"], least), min(row["high"], largest)
    values = sorted({row["value"] for row in rows})
    is_log = values[0] > 0 and values[-1] / values[0] >= _SPREAD
    room = 0.05 * (values[-1] - values[0])
    ends = [values[0] / 1.1, values[-1] * 1.1] if is_log else [values[0] - room, values[-1] + room]
    _move_apart(rows, names, ends, is_log)
    scale = {"type": "log", "base": 10} if is_log else {"zero": False}
    axis = alt.Axis(
        title=f"{setting}{', logarithmic' if is_log else ''}",
        values=values,
        format="~g",
        grid=True,
        labelOverlap="parity",
    )
    x = alt.X("place:Q").axis(axis).scale(domain=ends, nice=False, **scale)
    y = alt.Y(f"{score.field}:Q").axis(per_cent_axis(score.axis)).scale(domain=domain)
    places = colour_places(names)
    colour = method_colour(names, "line")
    dashes = [dash_at(place) for place in range(len(places))]
    dash = alt.StrokeDash("line:N").scale(domain=places, range=dashes).legend(None)
    base = alt.Chart(data(rows))
    tips = [
        alt.Tooltip("point:N", title="method"),
        alt.Tooltip("value:Q", title=short(setting)),
        alt.Tooltip("seeds:Q"),
    ]
    tips += [alt.Tooltip(f"{name}:Q", format=score.format) for name in (score.field, "low", "high")]
    small = base.mark_point(shape="stroke", opacity=0.9, size=60, strokeWidth=1.4, clip=True)
    layers = [
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_rule(strokeWidth=1.4, clip=True).encode(
            x=x, y=alt.Y("from:Q").scale(domain=domain).title(""), y2=alt.Y2("to:Q"), color=colour
        ),
        *(
            small.transform_filter(f"isValid(datum['{name}'])").encode(
                x=x, y=alt.Y(f"{name}:Q").scale(domain=domain).title(""), color=colour
            )
            for name in seeds
        ),
        base.mark_point(filled=True, opacity=1, size=60).encode(x=x, y=y, color=colour, tooltip=tips),
    ]
    alone = [method.name for method in methods if method.is_local]
    if any(row["point"] in alone for row in rows):
        named = base.transform_filter(alt.FieldOneOfPredicate(field="point", oneOf=alone))
        layers += with_rim(
            named.encode(x=x, y=y, text=alt.Text("point:N")), {}, style="note", align="left", dx=9, dy=-9
        )
    last = {row["line"]: row for row in rows}
    ends_of_lines = [{**row, "method": row["line"], "after": ""} for row in last.values()]
    layers += end_labels(ends_of_lines, names, score.field, domain, "place", _HEIGHT, ends=ends if is_log else None)
    return finished(alt.layer(*layers), height=_HEIGHT)


def _move_apart(rows: Sequence[Row], names: Sequence[str], ends: Sequence[float], is_log: bool) -> None:
    """Give each row a `place` next to its value, so that the bars of different lines do not cover each other.

    Args:
        rows: rows of the chart.
        names: names of the lines.
        ends: both ends of the horizontal axis.
        is_log: whether the axis is logarithmic.
    """
    step = min(_APART, 4 * _APART / len(names))
    for row in rows:
        share = step * (names.index(row["line"]) - (len(names) - 1) / 2)
        place = row["value"] * (ends[1] / ends[0]) ** share if is_log else row["value"] + share * (ends[1] - ends[0])
        row["place"] = float(f"{place:.5g}")


def _point(line: str, setting: str, value: float, method: Method, score: Score, seeds: Sequence[str]) -> Row | None:
    """Return a method's mean score with its interval; None if a run has no finite score."""
    scores = [last_score(run) * score.factor for run in method.runs]
    if not all(map(math.isfinite, scores)):
        return None
    mean = math.fsum(scores) / len(scores)
    low, high = t_interval(scores) or (mean, mean)
    shown = {score.field: mean, "low": low, "high": high}
    return {
        "line": line,
        "point": method.name,
        "setting": setting,
        "value": value,
        **{name: rounded_for(number, score) for name, number in shown.items()},
        "seeds": len(scores),
        **of_seeds(method, [rounded_for(number, score) for number in scores], seeds),
    }


def score_by_two_settings(runs: Sequence[Run | Method], settings: tuple[str, str] | None = None, line: str = "") -> Any:
    """Draw a heat map of the mean last score over two numeric settings of methods that differ in nothing else.

    Args:
        runs: runs, or methods, of one task.
        settings: dotted names of the settings; default: the first pair that was swept.
        line: name of the methods without these settings; default: the first one.

    Raises:
        UserError: no two numeric settings, or not these, were swept together.
    """
    methods = as_methods(runs)
    found = grids(methods)
    if not found or (settings is not None and settings not in found):
        raise UserError("no two numeric settings were swept together: two values or more of each are needed")
    settings = settings or next(iter(found))
    chosen = [grid for grid in found[settings] if line in ("", grid.name)]
    if not chosen:
        raise UserError(f"{line} was not swept over {' and '.join(settings)}")
    return _heat_map(chosen[0], settings, score_of(methods), seed_fields(methods))


def _heat_map(grid: Grid, settings: tuple[str, str], score: Score, seeds: Sequence[str]) -> Any:
    alt = altair()
    rows: list[Row] = []
    for (first, second), method in sorted(grid.methods.items()):
        row = _point(grid.name, settings[0], first, method, score, seeds)
        if row is not None:
            del row["setting"], row["value"], row["line"]
            words = score.number(row[score.field] / score.factor)
            rows.append({settings[0]: first, settings[1]: second, **row, "text": words})
    if not rows:
        raise UserError("no run was evaluated on test data")
    for row in rows:  # names of settings have dots, which a field must not have
        row["first"], row["second"] = f"{row[settings[0]]:g}", f"{row[settings[1]]:g}"
    orders = [[f"{v:g}" for v in sorted({row[setting] for row in rows})] for setting in settings]
    x = alt.X("first:N").axis(title=settings[0], labelAngle=0, domain=False, ticks=False).scale(domain=orders[0])
    y = alt.Y("second:N").axis(title=settings[1], domain=False, ticks=False).scale(domain=orders[1][::-1])
    domain = [min(row[score.field] for row in rows), max(row[score.field] for row in rows)]
    scale = {"range": "ramp", "domain": domain if score.higher_is_better else domain[::-1]}
    colour = (
        alt.Color(f"{score.field}:Q")
        .scale(**scale)
        .legend(alt.Legend(title=score.axis, orient="bottom", gradientLength=160, gradientThickness=10, tickCount=3))
    )
    tips = [alt.Tooltip("point:N", title="method"), alt.Tooltip("seeds:Q")]
    tips += [alt.Tooltip(f"{name}:Q", format=score.format) for name in (score.field, "low", "high")]
    base = alt.Chart(data(rows))
    cells = base.mark_rect(style="frame").encode(x=x, y=y, color=colour, tooltip=tips)
    texts = with_rim(base.encode(x=x, y=y, text=alt.Text("text:N")), {}, style="strong", fontSize=12, fontWeight=600)
    return finished(alt.layer(cells, *texts), width=380, height=90 + _CELL * len(orders[1]))
