"""How methods are told apart in charts: by colours and dashes, the same on a whole page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.base import altair
from dfl_lightning.bench.report.charts.theme import DASHES, DOTTED, LIGHT
from dfl_lightning.bench.report.methods import Method

LOCAL = "Local"
"""What training alone is called; it has a colour and dashes of its own."""


def faintness(methods: Sequence[Method]) -> Any:
    """The opacity of a line by its method: those that cannot be compared are faint."""
    alt = altair()
    aside = alt.FieldOneOfPredicate(field="method", oneOf=[method.name for method in methods if method.aside])
    return alt.condition(aside, alt.value(0.4), alt.value(1))


def method_colour(names: Sequence[str], field: str = "method") -> Any:
    """Colours by method, in the order of the names.

    Args:
        names: of the methods.
        field: of the rows that has the name.
    """
    alt = altair()
    return alt.Color(f"{field}:N").scale(domain=colour_places(names)).legend(None)


def method_dash(names: Sequence[str]) -> Any:
    """Dashes by method, in the order of the names."""
    alt, dashes = altair(), [dash_at(place) for place in range(len(colour_places(names)))]
    return alt.StrokeDash("method:N").scale(domain=colour_places(names), range=dashes).legend(None)


def colour_places(names: Sequence[str]) -> list[str]:
    """The names in the order of their colours: training alone has the palette's last one, whoever else there is.

    Blanks stand where no method has that colour.

    Args:
        names: of the methods.

    Examples:
        >>> colour_places(["A", "Local", "B"])
        ['A', 'B', '  ', '   ', '    ', '     ', 'Local']
    """
    number, found = len(LIGHT["category"]), [name for name in names if name != LOCAL]
    for place in range(number - 1, len(found) + len(found) // (number - 1) + 1, number):
        found.insert(place, " " * place)
    found += [" " * place for place in range(len(found), number)] * (LOCAL in names)
    if LOCAL in names:
        found[number - 1] = LOCAL
    return found


def dash_at(place: int) -> list[float]:
    """The dashes of the method at a place among the colours.

    Args:
        place: in `colour_places`.
    """
    number = len(LIGHT["category"])
    return DOTTED if place == number - 1 else DASHES[(place - place // number) % len(DASHES)]
