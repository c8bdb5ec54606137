"""Charts of single clients: their scores from best to worst, and their gains over training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.attack import honest
from dfl_lightning.bench.report.charts.axes import cut, per_cent_axis, rounded_for, score_bounds, whole_axis
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
from dfl_lightning.bench.report.charts.line_ends import end_labels, ended, said_after, with_rim
from dfl_lightning.bench.report.comparable import with_bands
from dfl_lightning.bench.report.methods import Method, as_methods, names_for_colours, seed_of
from dfl_lightning.bench.report.over_seeds import last_of_clients, of_honest, paired, thinned
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

_MOST_STRETCHED = 1200
"""Largest height in pixels to which the chart of clients is stretched, to be as high as that of gains next to it."""


_IN_TWO_LINES = (
    "length(datum.label) > 16 && indexof(datum.label, ' (') > 0"
    " ? split(replace(replace(datum.label, regexp(' = ', 'g'), '='), ' (', '\\n('), '\\n') : datum.label"
)
"""Vega expression of the label of a method: settings in brackets stand below a long name."""


_SIDE = 1 / 3
"""Share of the width at either side in which a text stands on one side of its mark only."""

_NAMED = 6
"""Largest number of clients that the tooltip of a dot names."""


def sorted_clients(runs: Sequence[Run | Method]) -> Any:
    """Draw the clients' scores at the last evaluation from best to worst, a step for each client.

    Scores are means over seeds by rank, with a band of one standard deviation. The worst tenth is shaded.

    Raises:
        UserError: no run was evaluated on test data.
    """
    alt, methods = altair(), drawn(runs)
    names, score = names_for_colours(methods), score_of(methods)
    rows: list[Row] = []
    ends: list[Row] = []
    for method in methods:
        of_method = _by_rank(method, score, seed_fields(methods))
        rows += of_method
        ends += [_end(method, row, score) for row in of_method[-1:]]
    if not rows:
        raise UserError("no run was evaluated on test data")
    most, compared = max(row["rank"] for row in rows), judged(rows, methods)
    domain = score_bounds([row[score.field] for row in compared], score)
    worst = most - math.ceil(most / 10) + 0.5
    x = whole_axis("rank", "clients, best to worst", rows, 7, start=1)
    title = cut(score.axis, (row[score.field] for row in rows), domain)
    y = alt.Y(f"{score.field}:Q").axis(per_cent_axis(title)).scale(domain=domain)
    with_band = sorted({row["method"] for row in compared if row["sd"] is not None} & set(with_bands(methods)))
    if not with_band:
        rows = [{name: value for name, value in row.items() if name not in ("sd", "low", "high")} for row in rows]
    base, colour = alt.Chart(data(rows)), method_colour(names)
    shade = alt.Chart(data([{"from": worst, "to": most}])).mark_rect(style="wash", clip=True)
    shade = shade.encode(x=alt.X("from:Q").scale(domain=[1, most], nice=False), x2=alt.X2("to:Q"))
    band = (
        base.transform_filter(alt.FieldOneOfPredicate(field="method", oneOf=with_band))
        .mark_area(opacity=0.16, clip=True, interpolate="step")
        .encode(x=x, y=alt.Y("low:Q").scale(domain=domain).title(""), y2=alt.Y2("high:Q"), color=colour)
    )
    line = base.mark_line(strokeWidth=2, interpolate="step", clip=True).encode(
        x=x, y=y, color=colour, strokeDash=method_dash(names, 0.5), opacity=faintness(methods)
    )
    tips = [alt.Tooltip("method:N"), alt.Tooltip("rank:Q", title="place")]
    tips.append(alt.Tooltip(f"{score.field}:Q", format=score.format))
    spots = base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(x=x, y=y, tooltip=tips)
    of_gains = _gain_height(sum(not m.is_local for m in methods)) if _has_chart_of_gains(methods) else 0
    height = max(height_for(names), min(of_gains, _MOST_STRETCHED))
    labels = end_labels(ends, names, score.field, domain, "rank", height, lines=rows)
    return finished(alt.layer(shade, *([band] if with_band else []), line, spots, *labels), height=height)


def _end(method: Method, row: Row, score: Score) -> Row:
    """Return the end of a method's line, with the words that follow its name there."""
    if math.isfinite(row[score.field]):
        return {**row, "after": said_after(method, "")}
    return {**row, **ended(method, score.field, math.nan)}


def _has_chart_of_gains(methods: Sequence[Method]) -> bool:
    """Return True if the page has a chart of gains over training alone, next to the chart of clients."""
    return any(method.is_local for method in methods)


def _gain_height(number: int) -> int:
    """Return the height of a chart of gains in pixels: a row for each method, and the axis."""
    return 50 + _row_of_gains(number)[0] * number


def _row_of_gains(number: int) -> tuple[int, int, int]:
    """Return sizes of the chart of gains: pixels of a row, area of the largest dot, and height of words above dots."""
    return (66, 460, 20) if number <= 4 else (54, 460, 20) if number <= 8 else (36, 170, 15)


def _by_rank(method: Method, score: Score, seeds: Sequence[str]) -> list[Row]:
    """Return mean and standard deviation over seeds of the best client, the second best, and so on.

    The ranks are thinned evenly. The list is empty if no run was evaluated, or if one has no client with test data.
    """
    of_runs = [of_honest(run, last_of_clients(run)) for run in method.runs]
    numbers = [best_first(values, score) for values in of_runs if len(values)]
    if not numbers or not min(map(len, numbers)):
        return []
    count = min(map(len, numbers))
    ranked = np.stack([values[:count] for values in numbers]) * score.factor
    rows: list[Row] = []
    for rank in thinned(count):
        mean = ranked[:, rank].mean()
        row: Row = {"method": method.name, "rank": int(rank) + 1, score.field: rounded_for(mean, score)}
        row |= dict.fromkeys(("sd", "low", "high"))
        if len(ranked) > 1:
            with np.errstate(invalid="ignore"):  # the deviation of infinite numbers is NaN, without a warning
                sd = ranked[:, rank].std(ddof=1)
            band = {"sd": sd, "low": mean - sd, "high": mean + sd}
            row |= {name: rounded_for(value, score) for name, value in band.items()}
        of_rank = [_of_rank(run, int(rank), score) for run in method.runs]
        row |= of_seeds(method, [None if found is None else found[1] for found in of_rank], seeds)
        who = of_seeds(method, [None if found is None else found[0] for found in of_rank], seeds)
        row |= {f"client of {name}": client for name, client in who.items()} or {"client": of_rank[0] and of_rank[0][0]}
        rows.append(row)
    return rows


def _of_rank(run: Run, rank: int, score: Score) -> tuple[int, float] | None:
    """Return the client of a rank, 0-based, and its score in the unit of the chart; None if there are fewer clients."""
    values = last_of_clients(run)
    if not len(values):
        return None
    clients = np.flatnonzero(honest(run, len(values)) & ~np.isnan(values))
    order = clients[np.argsort(-score.merit(1.0) * values[clients], kind="stable")]
    if rank >= len(order):
        return None
    return int(order[rank]), rounded_for(values[order[rank]] * score.factor, score)


def gain_over_local(runs: Sequence[Run | Method], local: Run | Method | None = None) -> Any:
    """Draw what clients gain over training alone, paired by seed and test data; a dot's area counts clients.

    Methods that cannot be compared are left out.

    Args:
        runs: runs, or methods.
        local: run or method in which clients train alone; default: the method whose clients received nothing.

    Raises:
        UserError: there is no such method, or no run can be paired with it.
    """
    alt, methods = altair(), drawn(runs)
    alone = as_methods([local])[0] if local is not None else next((m for m in methods if m.is_local), None)
    if alone is None:
        raise UserError("gains need a run in which clients train alone (--selection.k 0), and none is given")
    rows = gains([method for method in methods if not method.aside], alone)
    if not rows:
        raise UserError("no run has the seed and the test data of a run in which clients train alone")
    names = names_for_colours(methods)
    shown = list(dict.fromkeys(row["method"] for row in rows))
    score = score_of(methods)
    base = alt.Chart(data(_piles(rows, _step(rows, score))))
    seeds = seed_fields([m for m in methods if m.name in shown])
    y = alt.Y("method:N").scale(domain=shown).axis(title=None, labelFontSize=12, labelExpr=_IN_TWO_LINES)
    x = alt.X("gain:Q").axis(title=_over_alone(score), grid=True, tickCount=7)
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("gain:Q", format=f"+{score.format}"),
        alt.Tooltip("number:Q", title="number"),
        alt.Tooltip("clients:N"),
    ]
    _, area, above = _row_of_gains(len(shown))
    size = alt.Size("number:Q").scale(type="linear", domainMin=0, range=[0, area]).legend(None)
    dots = base.mark_point(filled=True, opacity=0.6, cursor="pointer").encode(
        x=x, y=y, size=size, color=method_colour(names), tooltip=tips
    )
    zero = alt.Chart(data([{"gain": 0}])).mark_rule(style="zero", strokeDash=[3, 3]).encode(x=alt.X("gain:Q"))
    means = []
    for name in shown:
        of_method = [row["gain"] for row in rows if row["method"] == name]
        lose = sum(gain < 0 for gain in of_method)
        worse = f", {lose} of {len(of_method)} lose"
        gain = score.signed(float(np.mean(of_method)) / score.factor)
        row: Row = {"method": name, "gain": float(np.mean(of_method)), "text": f"{gain}{worse}"}
        row["align"] = _alignment(row["gain"], [0, *(row["gain"] for row in rows)])
        for field in seeds:
            of_seed = [row["gain"] for row in rows if row["method"] == name and f"seed {row['seed']}" == field]
            row[field] = rounded_for(float(np.mean(of_seed)), score) if of_seed else None
        means.append(row)
    mean = alt.Chart(data(means))
    ticks = mean.mark_tick(style="zero", thickness=2.5, size=2 * math.sqrt(area / math.pi)).encode(x=x, y=y)
    texts = with_rim(
        mean.encode(x=x, y=y, text=alt.Text("text:N")), {}, style="strong", dy=-above, align=alt.ExprRef("datum.align")
    )
    of_each = [
        mean.transform_filter(f"isValid(datum['{field}'])")
        .mark_tick(style="zero", thickness=1.2, size=0.6 * math.sqrt(area))
        .encode(x=alt.X(f"{field}:Q"), y=y)
        for field in seeds
    ]
    chart = alt.layer(zero, dots, ticks, *of_each, *texts).properties(usermeta={"rows": rows})
    return finished(chart, height=_gain_height(len(shown)))


def _alignment(value: float, of: Sequence[float]) -> str:
    """Return the alignment of a text at a number that leaves it within the range of all, also on a narrow screen."""
    share = (value - min(of)) / ((max(of) - min(of)) or 1)
    return "left" if share < _SIDE else "right" if share > 1 - _SIDE else "center"


def gains(methods: Sequence[Method], alone: Method) -> list[dict[str, Any]]:
    """Return a row for each honest client of each pair of runs: `method`, `seed`, `client`, `gain`, `test samples`.

    The last is None if the run's split file does not say it. A gain is in points where the score is a share, and
    positive where the client is better off.

    Args:
        methods: methods to compare with it.
        alone: method in which clients train alone.
    """
    rows = []
    for method in methods:
        if method is alone:
            continue
        for run, partner in paired(method, alone):
            ours, theirs = last_of_clients(run), last_of_clients(partner)
            if len(ours) != len(theirs):
                continue
            score = run.score
            with np.errstate(invalid="ignore"):  # the difference of two infinite scores is NaN, without a warning
                differences = score.merit(1.0) * (ours - theirs) * score.factor
            tested = np.diff(run.split.get("test_offsets", np.array([], dtype=np.int64))).tolist()
            compared = honest(run, len(ours)) & honest(partner, len(ours))
            for client, gain in enumerate(differences):
                if compared[client] and math.isfinite(gain):
                    shown = rounded_for(gain, score)
                    entry = {"method": method.name, "seed": seed_of(run), "client": client, "gain": shown}
                    rows.append({**entry, "test samples": tested[client] if client < len(tested) else None})
    return rows


def best_first(values: np.ndarray, score: Score) -> np.ndarray:
    """Sort the numbers that are not NaN from best to worst.

    Args:
        values: scores of clients, [m].
        score: score of the task.
    """
    order = np.sort(values[~np.isnan(values)])
    return order[::-1] if score.higher_is_better else order


def _over_alone(score: Score) -> str:
    if score.percent:
        return "points above training alone"
    return f"{score.label} {'above' if score.higher_is_better else 'below'} that of training alone"


def _named(group: Sequence[dict[str, Any]]) -> str:
    """Name the clients of a dot, with their seeds and numbers of test samples; a long list counts the others."""
    words = []
    for row in group[:_NAMED]:
        seed = "" if row["seed"] is None else f", seed {row['seed']}"
        samples = "" if row.get("test samples") is None else f" ({row['test samples']} test samples)"
        words.append(f"client {row['client']}{seed}{samples}")
    more = [f"{len(group) - _NAMED} more"] if len(group) > _NAMED else []
    return "; ".join([*words, *more])


def _step(rows: Sequence[dict[str, Any]], score: Score) -> float:
    """Return the width within which gains are drawn as one dot: one point, or a 60th of their range."""
    gains = [row["gain"] for row in rows]
    return 1.0 if score.percent else float(f"{(max(gains) - min(gains)) / 60:.1g}") or 1.0


def _piles(rows: Sequence[dict[str, Any]], step: float) -> list[dict[str, Any]]:
    """Group the clients of a method whose gains are equal when rounded to the step.

    Returns:
        A row for each group: its mean `gain`, the `number` of clients, `who`, the seed and id of each client, and
        `clients`, the same in words.
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], round(row["gain"] / step)), []).append(row)
    return [
        {
            "method": method,
            "gain": float(f"{math.fsum(row['gain'] for row in group) / len(group):.6g}"),
            "number": len(group),
            "who": " ".join(f"{'' if row['seed'] is None else row['seed']}:{row['client']}" for row in group),
            "clients": _named(group),
        }
        for (method, _), group in groups.items()
    ]
