"""Axes: whole numbers, rounds and scores, on round numbers, and what they leave out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from dfl_lightning.bench.report.charts.base import Row, altair
from dfl_lightning.utils.score import Score


def whole_axis(field: str, title: str, rows: Sequence[Row], ticks: int, start: int | None = None) -> Any:
    """A horizontal axis of whole numbers, each of which stands there once.

    Args:
        field: of the rows.
        title: of the axis.
        rows: one or more.
        ticks: at most about so many.
        start: of the axis; default: the least number.
    """
    alt = altair()
    values = [int(row[field]) for row in rows]
    first, last = min(values) if start is None else start, max(values)
    axis = alt.Axis(title=title, format="d", values=whole_ticks(first, last, ticks))
    scale = alt.Scale(nice=False, zero=False) if start is None else alt.Scale(nice=False, domain=[first, last])
    return alt.X(f"{field}:Q").axis(axis).scale(scale)


def whole_ticks(first: int, last: int, most: int) -> list[int]:
    """Whole numbers from first to last that are multiples of 1, 2, 5, 10, 20 and so on.

    Args:
        first: least number.
        last: largest number.
        most: how many steps there may be between them.

    Examples:
        >>> whole_ticks(1, 3, 5), whole_ticks(1, 30, 5)
        ([1, 2, 3], [10, 20, 30])
    """
    step = next(step for step in _steps() if (last - first) / step <= most)
    return list(range(step * math.ceil(first / step), last + 1, step))


def _steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**power for power in count() for factor in (1, 2, 5))


def round_axis(rows: Sequence[Row], ticks: int) -> Any:
    """A horizontal axis of rounds, which people count from 1.

    Args:
        rows: with their `round`.
        ticks: at most about so many.
    """
    return whole_axis("round", "round", rows, ticks)


def cut(title: str, values: Iterable[float | None], domain: Sequence[float]) -> str:
    """The title of an axis, which says where it cuts values off.

    Args:
        title: of the axis.
        values: that the chart has, in its unit.
        domain: of the axis.

    Examples:
        >>> cut("test accuracy, %", [12.0, 93.0], [55, 95])
        'test accuracy, %, cut below 55'
    """
    known = finite(values)
    sides = [("below", domain[0], min(known, default=domain[0]) < domain[0])]
    sides.append(("above", domain[1], max(known, default=domain[1]) > domain[1]))
    words = " and ".join(f"{side} {end:g}" for side, end, is_cut in sides if is_cut)
    return f"{title}, cut {words}" if words else title


def per_cent_axis(title: str = "test accuracy, %", **options: Any) -> Any:
    """A vertical axis with a horizontal title above its end.

    Args:
        title: of the axis.
        options: further ones of `altair.Axis`.
    """
    return altair().Axis(
        title=title, titleAngle=0, titleAlign="left", titleAnchor="end", titleX=-34, titleY=-12, tickCount=6, **options
    )


def score_bounds(values: Sequence[float], score: Score) -> list[float]:
    """An axis domain of a task's score: of a share within 0 to 100, of others around the values, on round numbers.

    Args:
        values: in the unit of the chart; those that are not finite do not count.
        score: of the task.
    """
    if score.percent:
        return bounds(values)
    known = finite(values) or [0.0, 1.0]
    span = max(known) - min(known) or abs(max(known)) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 10))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= span / 20)
    ends = math.floor((min(known) - 0.06 * span) / step), math.ceil((max(known) + 0.06 * span) / step)
    return [float(f"{step * end:.6g}") for end in ends]


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are numbers and finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


def typical(values: Iterable[float | None], score: Score) -> list[float]:
    """The finite values without the worst 4 %, those of the first rounds, for which no axis is made; in order.

    Args:
        values: in the unit of the chart.
        score: of the task.
    """
    order = sorted(finite(values))
    few = len(order) // 25
    return order[few:] if score.higher_is_better else order[: len(order) - few]


def rounded_for(value: float, score: Score) -> float:
    """A number of a chart, without digits that cannot be seen.

    Args:
        value: in the unit of the chart.
        score: of the task.
    """
    return round(float(value), 3) if score.percent else float(f"{value:.5g}")


def bounds(values: Sequence[float], low: float = 0.0, high: float = 100.0, margin: float = 0.06) -> list[float]:
    """An axis domain around the values with a margin at both ends, on multiples of 5.

    Args:
        values: those that are not finite do not count.
        low: least bound.
        high: largest bound.
        margin: share of the values' range that is added at each end.

    Examples:
        >>> bounds([62.0, 91.0])
        [60, 95]
    """
    known = finite(values)
    if not known:
        return [low, high]
    least, most = min(known), max(known)
    room = max((most - least) * margin, 1.0)
    return [max(low, 5 * math.floor((least - room) / 5)), min(high, 5 * math.ceil((most + room) / 5))]
