"""How a method treats its clients: from best to worst, and against training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_lightning.report.charts.base import (
    Row,
    altair,
    data,
    drawn,
    end_labels,
    faintness,
    finished,
    judged,
    method_colour,
    method_dash,
    per_cent_axis,
    rounded_for,
    said_after,
    score_bounds,
    score_of,
    with_rim,
)
from dfl_lightning.report.methods import Method, as_methods, names_for_colours, seed_of
from dfl_lightning.report.over_seeds import last_of_clients, paired, thinned
from dfl_lightning.report.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score


def sorted_clients(runs: Sequence[Run | Method]) -> Any:
    """Draw clients from best to worst at the last evaluation: mean over seeds by rank; the worst tenth is shaded.

    Raises:
        UserError: no run was evaluated on test data.
    """
    alt, methods = altair(), drawn(runs)
    names, most, score = names_for_colours(methods), 1, score_of(methods)
    rows: list[Row] = []
    ends: list[Row] = []
    for method in methods:
        numbers = [best_first(known, score) for run in method.runs if len(known := last_of_clients(run))]
        if not numbers or not min(map(len, numbers)):
            continue
        count = min(map(len, numbers))
        ranks = np.stack([values[:count] for values in numbers]).mean(0) * score.factor
        most = max(most, count)
        for rank in thinned(count):
            rows.append({"method": method.name, "rank": int(rank) + 1, score.field: rounded_for(ranks[rank], score)})
        ends.append({**rows[-1], "after": said_after(method, "")})
    if not rows:
        raise UserError("no run was evaluated on test data")
    domain = score_bounds([row[score.field] for row in judged(rows, methods)], score)
    worst = most - math.ceil(most / 10) + 0.5
    x = alt.X("rank:Q").axis(title="clients, best to worst", tickMinStep=1, format="d", tickCount=7)
    x = x.scale(domain=[1, most], nice=False)
    y = alt.Y(f"{score.field}:Q").axis(per_cent_axis(score.axis)).scale(domain=domain)
    base, colour = alt.Chart(data(rows)), method_colour(names)
    shade = alt.Chart(data([{"from": worst, "to": most}])).mark_rect(style="wash", clip=True)
    shade = shade.encode(x=alt.X("from:Q").scale(domain=[1, most], nice=False), x2=alt.X2("to:Q"))
    line = base.mark_line(strokeWidth=2, interpolate="monotone", clip=True).encode(
        x=x, y=y, color=colour, strokeDash=method_dash(names), opacity=faintness(methods)
    )
    tips = [alt.Tooltip("method:N"), alt.Tooltip("rank:Q", title="place")]
    tips.append(alt.Tooltip(f"{score.field}:Q", format=score.format))
    spots = base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(x=x, y=y, tooltip=tips)
    labels = end_labels(ends, names, score.field, domain, "rank")
    return finished(alt.layer(shade, line, spots, *labels))


def gain_over_local(runs: Sequence[Run | Method], local: Run | Method | None = None) -> Any:
    """Draw what clients gain over training alone, paired by seed and test data; a dot's area counts clients.

    Methods that cannot be compared are left out.

    Args:
        runs: runs, or methods.
        local: training alone; default: the method whose clients received nothing.

    Raises:
        UserError: there is none, or no pairs.
    """
    alt, methods = altair(), drawn(runs)
    alone = as_methods([local])[0] if local is not None else next((m for m in methods if m.is_local), None)
    if alone is None:
        raise UserError("there is no run among them in which clients train alone (--selection.k 0)")
    rows = gains([method for method in methods if not method.aside], alone)
    if not rows:
        raise UserError("no run has the seed and the test data of a run in which clients train alone")
    names = names_for_colours(methods)
    shown = [name for name in names if any(row["method"] == name for row in rows)]
    score = score_of(methods)
    base = alt.Chart(data(_piles(rows, _step(rows, score))))
    y = alt.Y("method:N").scale(domain=shown).axis(title=None, labelFontSize=12)
    x = alt.X("gain:Q").axis(title=_over_alone(score), grid=True, tickCount=7)
    tips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("gain:Q", format=f"+{score.format}"),
        alt.Tooltip("number:Q", title="clients"),
    ]
    size = alt.Size("number:Q").scale(type="linear", domainMin=0, range=[0, 460]).legend(None)
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
        means.append({"method": name, "gain": float(np.mean(of_method)), "text": f"{gain}{worse}"})
    mean = alt.Chart(data(means))
    ticks = mean.mark_tick(style="zero", thickness=2.5, size=34).encode(x=x, y=y)
    texts = with_rim(mean.encode(x=x, y=y, text=alt.Text("text:N")), {}, style="strong", dy=-24)
    return finished(alt.layer(zero, dots, ticks, *texts), height=max(120, 76 * len(shown)))


def gains(methods: Sequence[Method], alone: Method) -> list[dict[str, Any]]:
    """A row for each client of each pair of runs: `method`, `seed`, `client`, `gain`.

    A gain is in points where the score is a share, and positive where the client is better off.

    Args:
        methods: to compare.
        alone: the method in which clients train alone.
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
            for client, gain in enumerate(score.merit(1.0) * (ours - theirs) * score.factor):
                if math.isfinite(gain):
                    shown = rounded_for(gain, score)
                    entry = {"method": method.name, "seed": seed_of(run), "client": client, "gain": shown}
                    rows.append(entry)
    return rows


def best_first(values: np.ndarray, score: Score) -> np.ndarray:
    """The numbers that are not NaN, from the best to the worst.

    Args:
        values: of clients.
        score: of the task.
    """
    order = np.sort(values[~np.isnan(values)])
    return order[::-1] if score.higher_is_better else order


def _over_alone(score: Score) -> str:
    if score.percent:
        return "points above training alone"
    return f"{score.label} {'above' if score.higher_is_better else 'below'} that of training alone"


def _step(rows: Sequence[dict[str, Any]], score: Score) -> float:
    """Within which gains are one dot: a point, or a 60th of what they span."""
    gains = [row["gain"] for row in rows]
    return 1.0 if score.percent else float(f"{(max(gains) - min(gains)) / 60:.1g}") or 1.0


def _piles(rows: Sequence[dict[str, Any]], step: float) -> list[dict[str, Any]]:
    """How many clients of a method gain the same, to a step, and `who` they are: seed and client of each."""
    found: dict[tuple[str, float], list[str]] = {}
    for row in rows:
        key = row["method"], float(f"{step * round(row['gain'] / step):.6g}")
        seed = "" if row["seed"] is None else row["seed"]
        found.setdefault(key, []).append(f"{seed}:{row['client']}")
    return [
        {"method": method, "gain": gain, "number": len(who), "who": " ".join(who)}
        for (method, gain), who in found.items()
    ]
