"""Where figures stand on the screen: rows without holes, as far as their shapes allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

_SPANS = {"wide": 12, "half": 6, "small": 4, "square": 6}
"""Columns of twelve that a shape has in a row of its own kind."""


def columns(shapes: Sequence[str]) -> list[str]:
    """The classes of figures that follow each other: `w12`, `w6` or `w4`, columns of twelve, or `lone`.

    A lone small one has its words at its left; three small ones stand in a row, and what is left over is put into rows
    of two; squares stand in twos, an odd number of them in threes.

    Args:
        shapes: `wide`, `half`, `small` or `square` each.

    Examples:
        >>> columns(["small"] * 4), columns(["wide", "half"]), columns(["square"] * 3)
        (['w6', 'w6', 'w6', 'w6'], ['w12', 'w12 lone'], ['w4', 'w4', 'w4'])
    """
    found: list[str] = []
    for shape, group in groupby(shapes):
        number = len(list(group))
        if number == 1 and shape != "wide":
            found.append("w12 lone")
        elif shape == "small":
            pairs = (0, 4, 2)[number % 3]
            found += ["w4"] * (number - pairs) + ["w6"] * pairs
        elif shape == "square" and number % 2:
            found += ["w4"] * number
        else:
            found += [f"w{_SPANS[shape]}"] * number
    return found
