"""Texts for readers who cannot see a chart: its title, its note, and the values at the ends of its lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

_MOST = 8
"""Largest number of methods whose values are given; the others are counted."""


def spoken(title: str, note: str, spec: dict[str, Any]) -> str:
    """Describe a chart in words.

    Args:
        title: title of the chart.
        note: sentences under the title; may be empty.
        spec: specification of Vega-Lite.

    Examples:
        >>> ends = {"method": "AFIND+", "label": "AFIND+  94.1", "end_y": 94.13}
        >>> spoken("Accuracy", "Mean over clients.", {"layer": [{"data": {"values": [ends]}}]})
        'Accuracy. Mean over clients. At the end: AFIND+ 94.1.'
    """
    values = _last_values(list(_rows(spec)))
    if len(values) > _MOST:
        values = [*values[:_MOST], f"{len(values) - _MOST} others"]
    numbers = f"At the end: {', '.join(values)}." if values else ""
    return " ".join(part for part in (f"{title}.", note, numbers) if part)


def _last_values(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the name and last value of each line, the highest first; of a chart of gains, the text of each method."""
    ends = {row["method"]: row for row in rows if "end_y" in row}
    order = sorted(ends.values(), key=lambda row: -math.inf if row["end_y"] is None else row["end_y"], reverse=True)
    if order:
        return [_last_value(row) for row in order]
    return [f"{row['method']} {row['text']}" for row in rows if "text" in row and "method" in row]


def _last_value(row: dict[str, Any]) -> str:
    """Return the name and last value of a line, or its label if that gives a reason instead of a value."""
    if ": " in row["label"] or row["end_y"] is None:
        return str(row["label"])
    return f"{row['method']} {row['end_y']:.3g}"


def _rows(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all rows that a chart or its layers contain."""
    for held in spec.get("datasets", {}).values():
        yield from held
    for part in [spec, *spec.get("layer", [])]:
        yield from part.get("data", {}).get("values", []) or []
