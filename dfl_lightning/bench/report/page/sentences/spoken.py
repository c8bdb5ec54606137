"""What a chart says to who cannot see it: its title, its note, and where its lines end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

_MOST = 8
"""Methods whose numbers are said; the others are counted."""


def spoken(title: str, note: str, spec: dict[str, Any]) -> str:
    """A chart in words.

    Args:
        title: of the chart.
        note: under the title; may be empty.
        spec: of Vega-Lite.

    Examples:
        >>> ends = {"method": "AFIND+", "label": "AFIND+  94.1", "end_y": 94.13}
        >>> spoken("Accuracy", "Mean over clients.", {"layer": [{"data": {"values": [ends]}}]})
        'Accuracy. Mean over clients. At the end: AFIND+ 94.1.'
    """
    found = _said(list(_rows(spec)))
    if len(found) > _MOST:
        found = [*found[:_MOST], f"{len(found) - _MOST} others"]
    numbers = f"At the end: {', '.join(found)}." if found else ""
    return " ".join(part for part in (f"{title}.", note, numbers) if part)


def _said(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The numbers of lines' ends, from the highest on, or the words at the rows of a chart of gains."""
    ends = {row["method"]: row for row in rows if "end_y" in row}
    order = sorted(ends.values(), key=lambda row: -math.inf if row["end_y"] is None else row["end_y"], reverse=True)
    if order:
        return [_ended(row) for row in order]
    return [f"{row['method']} {row['text']}" for row in rows if "text" in row and "method" in row]


def _ended(row: dict[str, Any]) -> str:
    """Say where a line ends, or the reason that its label gives."""
    if ": " in row["label"] or row["end_y"] is None:
        return str(row["label"])
    return f"{row['method']} {row['end_y']:.3g}"


def _rows(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows that a chart or its layers hold."""
    for held in spec.get("datasets", {}).values():
        yield from held
    for part in [spec, *spec.get("layer", [])]:
        yield from part.get("data", {}).get("values", []) or []
