"""Colours and dashes of methods, the same in all charts of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.base import altair
from dfl_lightning.bench.report.charts.theme import DASHES, DOTTED, LIGHT
from dfl_lightning.bench.report.methods import Method

LOCAL = "Local"
"""Name of training alone, which has a colour and dashes of its own."""


def faintness(methods: Sequence[Method]) -> Any:
    """Make the opacity of lines: methods that cannot be compared are faint."""
    alt = altair()
    aside = alt.FieldOneOfPredicate(field="method", oneOf=[method.name for method in methods if method.aside])
    return alt.condition(aside, alt.value(0.4), alt.value(1))


def method_colour(names: Sequence[str], field: str = "method") -> Any:
    """Make the colours of methods.

    Args:
        names: names of all methods of the page, in the order of their colours.
        field: field of the rows with the method's name.
    """
    alt = altair()
    return alt.Color(f"{field}:N").scale(domain=colour_places(names)).legend(None)


def method_dash(names: Sequence[str]) -> Any:
    """Make the dashes of methods.

    Args:
        names: names of all methods of the page, in the order of their dashes.
    """
    alt, dashes = altair(), [dash_at(index) for index in range(len(colour_places(names)))]
    return alt.StrokeDash("method:N").scale(domain=colour_places(names), range=dashes).legend(None)


def colour_places(names: Sequence[str]) -> list[str]:
    """List the names by the index of their colour; training alone always has the palette's last colour.

    Blank names fill indices that no method has.

    Args:
        names: names of all methods of the page.

    Examples:
        >>> colour_places(["A", "Local", "B"])
        ['A', 'B', '  ', '   ', '    ', '     ', 'Local']
    """
    number, placed = len(LIGHT["category"]), [name for name in names if name != LOCAL]
    for index in range(number - 1, len(placed) + len(placed) // (number - 1) + 1, number):
        placed.insert(index, " " * index)
    placed += [" " * index for index in range(len(placed), number)] * (LOCAL in names)
    if LOCAL in names:
        placed[number - 1] = LOCAL
    return placed


def dash_at(place: int) -> list[float]:
    """Return the dashes of a method, as lengths of strokes and gaps in pixels.

    Args:
        place: index of the method in `colour_places`.
    """
    number = len(LIGHT["category"])
    return DOTTED if place == number - 1 else DASHES[(place - place // number) % len(DASHES)]
