"""Charts that explain results: columns of metrics.csv over rounds, similarities of clients, and dropouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.axes import cut, finite, per_cent_axis, round_axis, whole_ticks
from dfl_lightning.bench.report.charts.base import (
    TILES,
    Row,
    altair,
    data,
    drawn,
    finished,
    judged,
    of_seeds,
    seed_fields,
)
from dfl_lightning.bench.report.charts.colours import faintness, method_colour, method_dash
from dfl_lightning.bench.report.charts.line_ends import end_labels, said_after
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.network import number_of_nodes
from dfl_lightning.bench.report.over_seeds import from_one, over_seeds, thinned
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError

MOST_CLIENTS = 200
"""Largest number of clients for which a matrix of all pairs is drawn."""

LISTED = 30
"""Largest number of clients whose ids are shown at the sides of a matrix of all pairs."""

IDS_AT_SIDES: dict[str, Any] = {
    **{"domain": False, "ticks": False, "labelAngle": 0, "labelFontSize": 9, "labelPadding": 4},
    **{"labelOverlap": "parity", "labelSeparation": 2},
}
"""Options of the axes with ids: if labels would overlap, as on a phone, every second one is left out."""

MOST_COLUMNS = 100
"""Largest number of rounds in the chart of dropouts."""


def found_over_rounds(runs: Sequence[Run | Method], column: str, title: str, share: bool = True) -> Any:
    """Draw a column of metrics.csv over rounds, mean over seeds, a line for each method.

    Args:
        runs: runs, or methods.
        column: such as `neighbour_precision`, `neighbour_recall`, `friend_accuracy`, `threshold`.
        title: title of the vertical axis.
        share: True if the column is a share from 0 to 1, which is shown in per cent.

    Raises:
        UserError: no run has numbers in the column.
    """
    alt, methods = altair(), drawn(runs)
    names, seeds, factor = names_for_colours(methods), seed_fields(methods), 100 if share else 1
    rows: list[Row] = []
    ends: list[Row] = []
    for method in methods:
        curve = over_seeds(method, column)
        values = curve["mean"] * factor
        of_method = [
            {
                **{"method": method.name, "round": from_one(r), "value": float(f"{v:.5g}")},
                **of_seeds(method, [float(f"{one * factor:.5g}") for one in each], seeds),
            }
            for r, v, each in zip(curve["round"], values, curve["runs"], strict=True)
        ]
        rows += of_method
        if of_method:
            is_finite = math.isfinite(values[-1])
            end = {} if is_finite else {"value": -math.inf}  # the name is then at the lower end of the axis
            ends.append({**of_method[-1], **end, "after": said_after(method, "" if is_finite else "not finite")})
    if not rows:
        raise UserError(f"no run has numbers in the column {column}")
    numbers = finite(float(row["value"]) for row in judged(rows, methods)) or [0.0, 1.0]
    room = (max(numbers) - min(numbers) or abs(max(numbers)) or 1.0) * 0.1
    domain = [0.0, 100.0] if share else [min(numbers) - room, max(numbers) + room]
    x = round_axis(rows, 5)
    title_of_axis = cut(title, (row["value"] for row in rows), domain)
    y = alt.Y("value:Q").axis(per_cent_axis(title_of_axis)).scale(domain=domain)
    base = alt.Chart(data(rows))
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x=x, y=y, color=method_colour(names), strokeDash=method_dash(names), opacity=faintness(methods)
    )
    tips = [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q", format=".3~g", title=title)]
    spots = base.mark_point(opacity=0, size=90, filled=True, clip=True).encode(x=x, y=y, tooltip=tips)
    labels = end_labels(ends, names, "value", domain, "round", 200, letters=18, lines=rows)
    return finished(alt.layer(line, spots, *labels), width=340, height=200)


def similarities(run: Run, round: int | None = None, domain: Sequence[float] | None = None) -> Any:
    """Draw a matrix of the similarities of all pairs of clients in a recorded round.

    Clients are in the order of their ground-truth clusters, if known.

    Args:
        run: run with recorded similarities.
        round: 0-based; the last recorded round up to it is drawn; default: the last recorded round.
        domain: similarities at both ends of the colours; default: the least and the largest of two different clients.

    Raises:
        UserError: the run has recorded no similarities up to that round, or has too many clients for a picture.
    """
    alt = altair()
    array, rounds = run.comparisons.get("similarity"), run.comparisons.get("rounds")
    if array is None or rounds is None or not len(rounds):
        raise UserError(f"{run.path} has no similarities in comparisons.npz")
    recorded = [i for i, r in enumerate(rounds) if (round is None or r <= round) and not np.isnan(array[i]).all()]
    if not recorded:
        raise UserError(f"{run.path} has no similarities up to round {round}")
    number = run.clients[run.score.column].shape[1] if run.score.column in run.clients else array.shape[1]
    if number > MOST_CLIENTS:
        raise UserError(f"{run.path} has {number} clients; a matrix of all pairs is drawn for {MOST_CLIENTS} at most")
    matrix, order = array[recorded[-1]], client_order(run, number)
    ends = domain or similarity_bounds([run], round) or (0.0, 1.0)
    rows: list[Row] = [
        {"client": i, "similarity": [float(f"{value:.3g}") if math.isfinite(value) else None for value in values]}
        for i, values in enumerate(matrix[:number, :number].tolist())
    ]  # a row for each client: with a row for each of 10,000 pairs a page would be slow
    at_top, at_left = (
        alt.Axis(orient=side, title=None, **IDS_AT_SIDES) if number <= LISTED else None for side in ("top", "left")
    )
    cells = (
        alt.Chart(data(rows))
        .transform_flatten(["similarity"])
        .transform_window([{"op": "row_number", "as": "place"}], groupby=["client"])
        .transform_calculate(other="datum.place - 1")
        .transform_filter("isValid(datum.similarity)")
        .mark_rect()
        .encode(
            x=alt.X("other:N").axis(at_top).scale(domain=order),
            y=alt.Y("client:N").axis(at_left).scale(domain=order),
            color=alt.Color("similarity:Q")
            .scale(range="ramp", domain=list(ends), clamp=True)
            .legend(_ramp_legend("similarity")),
            tooltip=[alt.Tooltip("client:N"), alt.Tooltip("other:N"), alt.Tooltip("similarity:Q", format=".3f")],
        )
    )
    return finished(cells.properties(name=TILES), width=380, height=380)


def similarity_rounds(run: Run) -> list[int]:
    """List the recorded rounds in which any similarity is known, 0-based."""
    array, rounds = run.comparisons.get("similarity"), run.comparisons.get("rounds")
    if array is None or rounds is None:
        return []
    return [int(r) for i, r in enumerate(rounds) if not np.isnan(array[i]).all()]


def similarity_bounds(runs: Sequence[Run], round: int | None = None) -> tuple[float, float] | None:
    """Return the least and the largest similarity of two different clients in the last recorded round of some runs.

    Args:
        runs: runs whose matrices have one scale of colours.
        round: 0-based; the last recorded round up to it counts.

    Returns:
        Both ends; None if no run has recorded similarities.
    """
    values = []
    for run in runs:
        array, rounds = run.comparisons.get("similarity"), run.comparisons.get("rounds")
        if array is None or rounds is None or array.ndim != 3:
            continue
        known = [i for i, r in enumerate(rounds) if (round is None or r <= round) and not np.isnan(array[i]).all()]
        if known:
            of_pairs = array[known[-1]][~np.eye(array.shape[-1], dtype=bool)]
            values += of_pairs[np.isfinite(of_pairs)].tolist()
    return (min(values), max(values)) if values else None


def dropouts(run: Run) -> Any:
    """Draw the clients that dropped out in each round, and for how many clients each substitute was mixed.

    Raises:
        UserError: no client dropped out in any round.
    """
    alt = altair()
    if not len(run.dropouts.get("round", [])):
        raise UserError(f"no client dropped out in {run.path}")
    number = number_of_nodes(run)[0]
    rounds = run.metrics["round"].astype(np.int64)
    shown = rounds[thinned(len(rounds), MOST_COLUMNS)]
    order = client_order(run, number)
    column_of = {int(r): index for index, r in enumerate(shown)}
    cells = _absences(run, column_of, {client: index for index, client in enumerate(order)})
    scale_y = {"domain": [-0.5, number - 0.5], "nice": False, "reverse": True}
    scale_x = {"domain": [-0.5, len(shown) - 0.5], "nice": False}
    labels = {str(index): from_one(r) for r, index in column_of.items()}
    labelled = (1, *whole_ticks(1, from_one(rounds[-1]), 8))
    ticks = sorted({int(np.abs(shown + 1 - r).argmin()) for r in labelled})
    axis_x = alt.Axis(
        title="round", values=ticks, labelExpr=f"{{{_js_entries(labels, ticks)}}}[datum.value]", domain=False
    )
    clients = {str(index): int(client) for index, client in enumerate(order)}
    every = list(range(0, number, max(1, number // 24)))
    axis_y = alt.Axis(
        title="client",
        values=every,
        labelExpr=f"{{{_js_entries(clients, every)}}}[datum.value]",
        grid=False,
        domain=False,
    )
    base = alt.Chart(data(cells)).transform_calculate(
        x0="datum.x - 0.45", x1="datum.x + 0.45", y0="datum.y - 0.42", y1="datum.y + 0.42"
    )
    cell = {
        "x": alt.X("x0:Q").axis(axis_x).scale(**scale_x),
        "x2": alt.X2("x1:Q"),
        "y": alt.Y("y0:Q").axis(axis_y).scale(**scale_y),
        "y2": alt.Y2("y1:Q"),
    }
    tips = [alt.Tooltip("round:Q"), alt.Tooltip("client:Q"), alt.Tooltip("state:N")]
    absent = base.transform_filter("datum.for == 0").mark_rect(style="absent").encode(**cell, tooltip=tips)
    layers = [absent]
    if any(cell["for"] for cell in cells):
        colour = alt.Color("for:Q").scale(range="ordinal", domainMin=0).legend(_ramp_legend("clients it stands in for"))
        tips = [*tips, alt.Tooltip("for:Q", title="clients it stands in for")]
        layers.append(base.transform_filter("datum.for > 0").mark_rect().encode(**cell, color=colour, tooltip=tips))
    return finished(alt.layer(*layers), width=620, height=max(120, min(420, 15 * number)))


def _absences(run: Run, column_of: Mapping[int, int], row_of: Mapping[int, int]) -> list[Row]:
    """List the clients that dropped out, and those that stood in for others, each with its cell in the picture.

    Args:
        run: a run with dropouts.
        column_of: the column of each round that is shown, 0-based.
        row_of: the row of each client.
    """
    dropped = run.dropouts
    cells: list[Row] = [
        {"round": int(r), "client": int(c), "state": "dropped out", "for": 0}
        for r, c in zip(dropped["round"], dropped["client"], strict=True)
        if int(r) in column_of
    ]
    cells += [
        {"round": r, "client": c, "state": "stands in", "for": len(others)}
        for (r, c), others in stood_in_for(run).items()
        if r in column_of
    ]
    for cell in cells:
        cell["x"], cell["y"] = column_of[cell["round"]], row_of.get(cell["client"], cell["client"])
        cell["round"] = from_one(cell["round"])
    return cells


def stood_in_for(run: Run) -> dict[tuple[int, int], set[int]]:
    """Return the clients for which each client was a substitute, by round and substitute.

    Substitutes that are not clients, such as stored updates and means, are left out.
    """
    replaced: dict[tuple[int, int], set[int]] = {}
    columns = (run.substitutes.get(name, np.array([], dtype=np.int64)) for name in ("round", "client", "substitute"))
    for round, client, friend in zip(*columns, strict=True):
        if 0 <= friend < number_of_nodes(run)[0]:
            replaced.setdefault((int(round), int(friend)), set()).add(int(client))
    return replaced


def client_order(run: Run, number: int) -> list[int]:
    """Sort the ids of clients by ground-truth cluster; if clusters are unknown, by id.

    Args:
        run: run with a split file.
        number: number of clients.
    """
    clusters = run.split.get("clusters", np.array([]))
    return np.argsort(clusters, kind="stable").tolist() if len(clusters) == number else list(range(number))


def _ramp_legend(title: str) -> Any:
    return altair().Legend(title=title, orient="bottom", gradientLength=160, gradientThickness=10, tickCount=3)


def _js_entries(labels: dict[str, int], ticks: Sequence[int]) -> str:
    """Write the labels of ticks as entries of a JavaScript object."""
    return ", ".join(f"'{tick}': '{labels[str(tick)]}'" for tick in ticks)
