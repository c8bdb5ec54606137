"""Colours and dashes of methods, the same in all charts of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from dfl_lightning.bench.report.charts.base import altair
from dfl_lightning.bench.report.look.theme import DASHES, DOTTED, LIGHT
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


def method_dash(names: Sequence[str], factor: float = 1.0) -> Any:
    """Make the dashes of methods.

    Args:
        names: names of all methods of the page, in the order of their dashes.
        factor: factor of their lengths; short steps need short dashes.
    """
    alt = altair()
    dashes = [[factor * length for length in dash_at(index)] for index in range(len(colour_places(names)))]
    return alt.StrokeDash("method:N").scale(domain=colour_places(names), range=dashes).legend(None)


def colour_places(names: Sequence[str]) -> list[str]:
    """List the names by the index of their colour; training alone always has the palette's last colour.

    A method has the same colour on all pages unless another one of the page wants it, too: the names of this library
    have colours of their own, and any other name one that follows from its letters. What stands in brackets after a
    name does not change its colour. Blank names fill indices that no method has.

    Args:
        names: names of all methods of the page.

    Examples:
        >>> places = colour_places(["Gossip", "Local", "AFIND+"])
        >>> places[:2], places[-1], len(places)
        (['AFIND+', 'Gossip'], 'Local', 13)
        >>> colour_places(["Gossip (k = 5)", "Gossip (k = 9)", "PANM"])[:4]
        [' ', 'Gossip (k = 5)', 'PANM', 'Gossip (k = 9)']
    """
    number = len(LIGHT["category"])
    own = number - 1  # the last colour is that of training alone
    placed: dict[int, str] = {number - 1: LOCAL} if LOCAL in names else {}
    methods = [name for name in dict.fromkeys(names) if name != LOCAL]
    turns = [methods[at : at + own] for at in range(0, len(methods), own)]  # in each turn, all colours once
    for turn, name in ((turn, name) for turn, some in enumerate(turns) for name in _in_turn(some)):
        wanted = _colour_of(name, own)
        place = next(
            turn * number + (wanted + step) % own
            for step in range(own)
            if turn * number + (wanted + step) % own not in placed
        )
        placed[place] = name
    last = max(placed, default=-1)
    return [placed.get(index, " " * (index + 1)) for index in range(last + 1)]


_KNOWN = (
    *("AFIND+", "Gossip", "PANM", "DPFL", "FedAvg", "FL-FDMS"),
    *("Ditto", "FedProx", "pFedGraph", "APFL", "FedPer", "Dis-PFL"),
)
"""Names of methods with a colour of their own, by the index of the colour."""


def _in_turn(names: Sequence[str]) -> list[str]:
    """Sort names: one of each base first, so that it has its colour, and of these the names of this library first."""
    counts: Counter[str] = Counter()
    number = {}
    for name in sorted(names):
        number[name] = counts[_base(name)]
        counts[_base(name)] += 1
    return sorted(names, key=lambda name: (number[name], _base(name) not in _KNOWN, name))


def _colour_of(name: str, number: int) -> int:
    """Return the index of the colour that a name should have."""
    base = _base(name)
    return _KNOWN.index(base) if base in _KNOWN else crc32(base.encode()) % number


def _base(name: str) -> str:
    """Return a name without the settings in brackets after it."""
    return name.partition(" (")[0]


def dash_at(place: int) -> list[float]:
    """Return the dashes of a method, as lengths of strokes and gaps in pixels.

    Args:
        place: index of the method in `colour_places`.
    """
    number = len(LIGHT["category"])
    return DOTTED if place == number - 1 else DASHES[(place - place // number) % len(DASHES)]
