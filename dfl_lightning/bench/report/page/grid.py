"""Where figures stand on the screen and on paper: rows without holes, as far as their shapes allow."""

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


def in_fours(shapes: Sequence[str]) -> list[bool]:
    """Whether each of the figures that follow each other stands in a row of four on paper.

    Small ones stand in threes there and squares in fours, or the other way round where one would be left alone.

    Args:
        shapes: `wide`, `half`, `small` or `square` each.

    Examples:
        >>> sum(in_fours(["small"] * 6)), sum(in_fours(["small"] * 7)), sum(in_fours(["square"] * 6))
        (0, 7, 6)
    """
    found: list[bool] = []
    for shape, group in groupby(shapes):
        number = len(list(group))
        fours = 0
        if shape in ("small", "square") and number > 3:
            preferred = (3, 4) if shape == "small" else (4, 3)
            whole = next((row for row in preferred if number % row != 1), None)
            fours = {3: 0, 4: number, None: 4}[whole]
        found += [at < fours for at in range(number)]
    return found
