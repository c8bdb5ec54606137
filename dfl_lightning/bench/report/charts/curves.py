"""Charts of the score over rounds: with a band over seeds, and for one run with bands over clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dfl_lightning.bench.report.charts.axes import cut, per_cent_axis, round_axis, rounded_for, score_bounds, typical
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
from dfl_lightning.bench.report.charts.colours import faintness, method_colour, method_dash
from dfl_lightning.bench.report.charts.line_ends import end_labels, ended
from dfl_lightning.bench.report.comparable import with_bands
from dfl_lightning.bench.report.methods import Method, as_methods, names_for_colours
from dfl_lightning.bench.report.over_seeds import from_one, of_honest, over_seeds, thinned
from dfl_lightning.functional import over_clients
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


def learning_curves(runs: Sequence[Run | Method], column: str = "") -> Any:
    """Draw the mean test score (the accuracy, for classes) over rounds, a line for each method.

    The band is one standard deviation over seeds; with more than eight methods, only the best three have a band.

    Args:
        runs: runs, or methods.
        column: column of metrics.csv, in the unit of the score; default: the score on test data.

    Raises:
        UserError: no run has numbers in the column.
    """
    alt, methods = altair(), drawn(runs)
    score = score_of(methods)
    seeds = seed_fields(methods)
    names, column, unit = names_for_colours(methods), column or score.column, score.factor
    rows: list[Row] = []
    ends: list[Row] = []

    def shown(value: float) -> float | None:
        return rounded_for(value, score) if math.isfinite(value) else None

    for method in methods:
        curve = over_seeds(method, column)
        columns = (curve["round"], curve["mean"] * unit, curve["sd"] * unit, curve["runs"] * unit)
        for r, mean, sd, each in zip(*columns, strict=True):
            row: Row = {"method": method.name, "round": from_one(r), "mean": rounded_for(mean, score), "sd": shown(sd)}
            rows.append({**row, **of_seeds(method, list(map(shown, each)), seeds)})
        if len(curve["round"]):
            last = {"method": method.name, "round": from_one(curve["round"][-1])}
            ends.append({**last, **ended(method, "mean", float(curve["mean"][-1]))})
    if not rows:
        raise UserError(f"no run has numbers in the column {column}")
    for row in rows:
        half = row["sd"] if row["sd"] is not None else math.nan
        row["low"], row["high"] = shown(row["mean"] - half), shown(row["mean"] + half)
    compared = judged(rows, methods)
    ends_of_bands = [row["high" if score.higher_is_better else "low"] for row in compared if row["high"] is not None]
    best = [max(ends_of_bands) if score.higher_is_better else min(ends_of_bands)] if ends_of_bands else []
    domain = score_bounds([*typical((row["mean"] for row in compared), score), *best], score)
    x = round_axis(rows, 8)
    title = cut(score.axis, (row["mean"] for row in rows), domain)
    y = alt.Y("mean:Q").axis(per_cent_axis(title)).scale(domain=domain)
    base = alt.Chart(data(rows))
    colour, tooltip = (
        method_colour(names),
        [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), alt.Tooltip("mean:Q", format=score.format)],
    )
    if any(row["sd"] is not None for row in rows):
        tooltip.append(alt.Tooltip("sd:Q", format=score.format))
    with_band = sorted({row["method"] for row in compared if row["sd"] is not None} & set(with_bands(methods)))
    band = (
        base.transform_filter(alt.FieldOneOfPredicate(field="method", oneOf=with_band))
        .mark_area(opacity=0.16, clip=True)
        .encode(x=x, y=alt.Y("low:Q").scale(domain=domain).title(""), y2=alt.Y2("high:Q"), color=colour)
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x=x, y=y, color=colour, strokeDash=method_dash(names), opacity=faintness(methods)
    )
    spots = base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(x=x, y=y, tooltip=tooltip)
    of_bands = base.transform_filter(alt.FieldOneOfPredicate(field="method", oneOf=with_band))
    thin = [single_seed(of_bands, name, x, domain, colour) for name in seeds if with_band]
    layers = [line, *thin, spots, *end_labels(ends, names, "mean", domain, "round", height_for(names), lines=rows)]
    return finished(alt.layer(*([band] if with_band else []), *layers), height=height_for(names))


def single_seed(base: Any, field: str, x: Any, domain: Sequence[float], colour: Any) -> Any:
    """Make thin lines of the values of a single seed, a line for each method that has it.

    Args:
        base: chart with the rows.
        field: field of the seed's values, see `seed_fields`.
        x: horizontal axis.
        domain: both ends of the vertical axis.
        colour: colours of methods.
    """
    y = altair().Y(f"{field}:Q").scale(domain=domain).title("")
    valid = base.transform_filter(f"isValid(datum['{field}'])")
    return valid.mark_line(strokeWidth=0.8, opacity=0.5, clip=True).encode(x=x, y=y, color=colour)


def client_bands(run: Run | Method, column: str = "") -> Any:
    """Draw the score over rounds in one run: median, middle half and middle 80 % of the clients, and the worst tenth.

    Args:
        run: a run, or a method, of which the run with the first seed is drawn.
        column: array of clients.npz, in the unit of the score; default: the score on test data.

    Raises:
        UserError: the run has no such column.
    """
    alt = altair()
    method = as_methods([run])[0]
    first, label, score = method.runs[0], method.name, method.score
    column = column or score.column
    values = first.clients.get(column)
    if values is None or not len(values):
        raise UserError(f"{first.path} has no {column} in clients.npz")
    values = of_honest(first, values)
    keep, shares = thinned(len(values)), (10, 25, 50, 75, 90)
    rows: list[Row] = []
    has_scores = ~np.isnan(values).all(1)
    for i in keep[has_scores[keep]]:
        numbers = values[i][~np.isnan(values[i])] * score.factor
        with np.errstate(invalid="ignore"):  # a percentile between two infinite numbers is NaN, without a warning
            percentiles = np.percentile(numbers, shares)
        low, q1, middle, q3, high = (rounded_for(value, score) for value in percentiles)
        over = over_clients(torch.from_numpy(numbers), higher_is_better=score.higher_is_better)
        worst = rounded_for(over.worst10, score)
        quantiles = {"p10": low, "p25": q1, "median": middle, "p75": q3, "p90": high, "worst tenth": worst}
        rows.append({"method": label, "round": from_one(first.clients["rounds"][i]), **quantiles})
    if not rows:
        raise UserError(f"{first.path} has no numbers for {column} in clients.npz")
    numbers_of_all = [number for row in rows for name, number in row.items() if name not in ("method", "round")]
    domain = [0, 100] if score.percent else score_bounds(typical(numbers_of_all, score), score)
    base = alt.Chart(data(rows))
    x = round_axis(rows, 5)
    y = alt.Y("median:Q").axis(per_cent_axis(cut(score.axis, numbers_of_all, domain))).scale(domain=domain)

    def area(low: str, high: str, opacity: float) -> Any:
        return base.mark_area(opacity=opacity, clip=True).encode(
            x=x, y=alt.Y(f"{low}:Q").scale(domain=domain).title(""), y2=alt.Y2(f"{high}:Q"), color=colour
        )

    colour = method_colour(names_for_colours([method]))
    tips = [alt.Tooltip(f"{n}:Q", format=score.format) for n in ("p10", "p25", "median", "p75", "p90", "worst tenth")]
    return finished(
        alt.layer(
            area("p10", "p90", 0.16),
            area("p25", "p75", 0.3),
            base.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour),
            base.mark_line(strokeWidth=1.2, strokeDash=[4, 3], clip=True).encode(
                x=x, y=alt.Y("worst tenth:Q").scale(domain=domain).title(""), color=colour
            ),
            base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(
                x=x, y=y, tooltip=[alt.Tooltip("round:Q"), *tips]
            ),
        ),
        width=300,
        height=190,
    )
