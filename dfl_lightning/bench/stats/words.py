"""Words for standard deviations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median


def spread_in_words(sd: float, text: str) -> str:
    """Write a standard deviation whose digits may all be zeros: 0 if it is 0, otherwise what it is below.

    Args:
        sd: the standard deviation.
        text: the same in the digits of the mean.

    Examples:
        >>> spread_in_words(0.0, "0.0"), spread_in_words(0.004, "0.0"), spread_in_words(0.21, "0.2")
        ('0', '< 0.1', '0.2')
    """
    if sd == 0:
        return "0"
    return text if text.strip("0.") else f"< {text[:-1]}1"


def shared_digits(values: Iterable[float]) -> int:
    """Return the digits after the point for all numbers of a column.

    The least number shows three significant digits, unless the median would show more than four. Zeros and numbers that
    are not finite do not count.

    Args:
        values: numbers of the column.

    Examples:
        >>> shared_digits([0.943, 3.0]), shared_digits([54.1, 61.7]), shared_digits([0.001, 0.91, 0.93])
        (3, 1, 4)
    """
    known = [abs(value) for value in values if value and math.isfinite(value)]
    if not known:
        return 1
    fine, coarse = (math.floor(math.log10(value)) for value in (min(known), median(known)))
    return max(0, min(2 - fine, 3 - coarse))


def shared_reference(values: Iterable[float]) -> float:
    """Return a number with as many digits after the point as `shared_digits`, for `Score.number` and `Score.signed`.

    Args:
        values: numbers of the column.

    Examples:
        >>> shared_reference([0.943, 3.0])
        0.5
    """
    return 5.0 * 10.0 ** (2 - shared_digits(values))
