"""Axes of charts: for whole numbers, rounds and scores, with ends on round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from dfl_lightning.bench.report.charts.base import Row, altair
from dfl_lightning.utils.score import Score


def whole_axis(field: str, title: str, rows: Sequence[Row], ticks: int, start: int | None = None) -> Any:
    """Make a horizontal axis of whole numbers, without repeated labels.

    Args:
        field: field of the rows with the numbers.
        title: title of the axis.
        rows: one or more.
        ticks: largest number of steps between ticks.
        start: first number of the axis; default: the least one of the rows.
    """
    alt = altair()
    values = [int(row[field]) for row in rows]
    first, last = min(values) if start is None else start, max(values)
    axis = alt.Axis(title=title, format="d", values=whole_ticks(first, last, ticks))
    scale = alt.Scale(nice=False, zero=False) if start is None else alt.Scale(nice=False, domain=[first, last])
    return alt.X(f"{field}:Q").axis(axis).scale(scale)


def whole_ticks(first: int, last: int, most: int) -> list[int]:
    """List the multiples of a round step (1, 2, 5, 10, 20 and so on) from first to last.

    Args:
        first: least number.
        last: largest number.
        most: largest number of steps; the step is the smallest with which there are not more.

    Examples:
        >>> whole_ticks(1, 3, 5), whole_ticks(1, 30, 5)
        ([1, 2, 3], [10, 20, 30])
    """
    step = next(step for step in _steps() if (last - first) / step <= most)
    return list(range(step * math.ceil(first / step), last + 1, step))


def _steps() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**power for power in count() for factor in (1, 2, 5))


def log_ticks(low: float, high: float) -> list[float]:
    """List the ticks of a logarithmic axis: 1, 2 and 5 times powers of ten; fewer factors over many powers.

    Args:
        low: lower end of the axis, above 0.
        high: upper end.

    Examples:
        >>> log_ticks(0.3, 8.0), log_ticks(1.0, 5000.0)
        ([0.5, 1.0, 2.0, 5.0], [1.0, 10.0, 100.0, 1000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) <= 2 else (1, 5) if math.log10(high / low) <= 3 else (1,)
    ticks = [float(f"{factor * 10.0**power:.6g}") for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def round_axis(rows: Sequence[Row], ticks: int) -> Any:
    """Make a horizontal axis of rounds.

    Args:
        rows: rows with a `round`, counted from 1.
        ticks: largest number of steps between ticks.
    """
    return whole_axis("round", "round", rows, ticks)


def cut(title: str, values: Iterable[float | None], domain: Sequence[float]) -> str:
    """Add to the title of an axis where it cuts values off.

    Args:
        title: title without this.
        values: values of the chart, in its unit; None and NaN are ignored.
        domain: both ends of the axis.

    Examples:
        >>> cut("test accuracy, %", [12.0, 93.0], [55, 95])
        'test accuracy, %, cut below 55'
    """
    numbers = finite(values)
    sides = [("below", domain[0], min(numbers, default=domain[0]) < domain[0])]
    sides.append(("above", domain[1], max(numbers, default=domain[1]) > domain[1]))
    words = " and ".join(f"{side} {end:g}" for side, end, is_cut in sides if is_cut)
    return f"{title}, cut {words}" if words else title


def per_cent_axis(title: str = "test accuracy, %", **options: Any) -> Any:
    """Make a vertical axis with a horizontal title above its upper end.

    Args:
        title: title of the axis.
        options: further options of `altair.Axis`.
    """
    return altair().Axis(
        title=title, titleAngle=0, titleAlign="left", titleAnchor="end", titleX=-34, titleY=-12, tickCount=6, **options
    )


def score_bounds(values: Sequence[float], score: Score) -> list[float]:
    """Choose both ends of an axis for a task's score: around the values, on round numbers, within 0 to 100 for a share.

    Args:
        values: in the unit of the chart; those that are not finite are ignored.
        score: score of the task.
    """
    if score.percent:
        return bounds(values)
    numbers = finite(values) or [0.0, 1.0]
    span = max(numbers) - min(numbers) or abs(max(numbers)) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 10))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= span / 20)
    ends = math.floor((min(numbers) - 0.06 * span) / step), math.ceil((max(numbers) + 0.06 * span) / step)
    return [float(f"{step * end:.6g}") for end in ends]


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the finite numbers among the values."""
    return [value for value in values if value is not None and math.isfinite(value)]


def typical(values: Iterable[float | None], score: Score) -> list[float]:
    """Sort the finite values and leave out the worst 4 %: an axis need not show the scores of the first rounds.

    Args:
        values: in the unit of the chart.
        score: score of the task.
    """
    order = sorted(finite(values))
    few = len(order) // 25
    return order[few:] if score.higher_is_better else order[: len(order) - few]


def rounded_for(value: float, score: Score) -> float:
    """Round a score of a chart to digits that can be seen.

    Args:
        value: in the unit of the chart.
        score: score of the task.
    """
    return round(float(value), 3) if score.percent else float(f"{value:.5g}")


def bounds(values: Sequence[float], low: float = 0.0, high: float = 100.0, margin: float = 0.06) -> list[float]:
    """Choose both ends of an axis around the values, with a margin, on multiples of 5.

    Args:
        values: those that are not finite are ignored.
        low: least bound.
        high: largest bound.
        margin: share of the values' range that is added at each end.

    Examples:
        >>> bounds([62.0, 91.0])
        [60, 95]
    """
    numbers = finite(values)
    if not numbers:
        return [low, high]
    least, most = min(numbers), max(numbers)
    room = max((most - least) * margin, 1.0)
    return [max(low, 5 * math.floor((least - room) / 5)), min(high, 5 * math.ceil((most + room) / 5))]
