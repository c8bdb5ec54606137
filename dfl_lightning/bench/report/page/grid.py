"""Layout of figures on the screen and on paper: rows without gaps, if their shapes allow it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

_SPANS = {"wide": 12, "half": 6, "small": 4, "square": 6}
"""Width of a shape in a row of equal shapes, in columns of twelve."""


def columns(shapes: Sequence[str]) -> list[str]:
    """Choose the CSS classes of consecutive figures: `w12`, `w6` or `w4`, in columns of twelve, or `w12 lone`.

    A single figure that is not wide is `lone`: its words are at its left. Small figures are in rows of three, the
    remaining ones in rows of two. Squares are in rows of two, an odd number of them in rows of three.

    Args:
        shapes: `wide`, `half`, `small` or `square` for each figure.

    Examples:
        >>> columns(["small"] * 4), columns(["wide", "half"]), columns(["square"] * 3)
        (['w6', 'w6', 'w6', 'w6'], ['w12', 'w12 lone'], ['w4', 'w4', 'w4'])
    """
    classes: list[str] = []
    for shape, group in groupby(shapes):
        number = len(list(group))
        if number == 1 and shape != "wide":
            classes.append("w12 lone")
        elif shape == "small":
            pairs = (0, 4, 2)[number % 3]
            classes += ["w4"] * (number - pairs) + ["w6"] * pairs
        elif shape == "square" and number % 2:
            classes += ["w4"] * number
        else:
            classes += [f"w{_SPANS[shape]}"] * number
    return classes


def in_fours(shapes: Sequence[str]) -> list[bool]:
    """Choose which of some consecutive figures are in rows of four on paper, a bool for each figure.

    Small figures are in rows of three and squares in rows of four, or the other way round if one would be left alone.

    Args:
        shapes: `wide`, `half`, `small` or `square` for each figure.

    Examples:
        >>> sum(in_fours(["small"] * 6)), sum(in_fours(["small"] * 7)), sum(in_fours(["square"] * 6))
        (0, 7, 6)
    """
    are_in_fours: list[bool] = []
    for shape, group in groupby(shapes):
        number = len(list(group))
        fours = 0
        if shape in ("small", "square") and number > 3:
            preferred = (3, 4) if shape == "small" else (4, 3)
            length = next((row for row in preferred if number % row != 1), None)
            fours = {3: 0, 4: number, None: 4}[length]
        are_in_fours += [index < fours for index in range(number)]
    return are_in_fours
