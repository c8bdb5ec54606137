"""A page's data in fewer letters: rows as columns, half of a symmetric matrix, numbers as letters.

`expand.js` undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

COLUMNS, HALF, LETTERS = "@columns", "@half", "@letters"
"""Keys of what stands for a list of rows, for a symmetric matrix, and for a list of numbers."""

_LEAST, _MOST = 8, 50_000
"""Numbers of a list that become letters, at least, and the steps that they span at most: below surrogates' codes."""

_FIRST, _DECIMALS = 35, 5
"""The first letter, after the quotation mark, and the digits after the point that numbers may have."""


_SHORT = 0.9
"""Part of the letters, at least, that take a byte: where more take two or three, digits are shorter."""


def compact(value: Any) -> Any:
    """Write rows of the same names as columns, and of symmetric matrices the lower half, in any depth.

    Args:
        value: of JSON's types.

    Examples:
        >>> compact({"rows": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]})
        {'rows': {'@columns': {'x': [1, 3], 'y': [2, 4]}}}
        >>> compact([[1, 2, 3], [2, 5, 6], [3, 6, 9]])
        {'@half': [[1], [2, 5], [3, 6, 9]]}
        >>> compact([0.5, 0.51, 0.52, 0.5, 0.5, 0.5, 0.5, 0.53])
        {'@letters': [2, 50, '#$%####&']}
    """
    if isinstance(value, dict):
        return {key: compact(inner) for key, inner in value.items()}
    if not isinstance(value, (list, tuple)) or not value:
        return value
    if not isinstance(value[0], (dict, list, tuple)):
        return _as_letters(value)
    if _are_rows(value):
        return {COLUMNS: {key: compact([row[key] for row in value]) for key in value[0]}}
    if _is_symmetric(value):
        return {HALF: [compact(row[: at + 1]) for at, row in enumerate(value)]}
    return [compact(inner) for inner in value]


def _as_letters(values: Sequence[Any]) -> Any:
    """Numbers as `[decimals, least, letters]`: a letter a number, few bits when it is packed; others as they are."""
    if len(values) < _LEAST or not isinstance(values[0], (int, float)):
        return values
    try:
        array = np.array(values)
    except ValueError:  # lists among them
        return values
    if array.dtype.kind not in "if":
        return values
    for decimals in range(_DECIMALS + 1):
        whole = np.rint(array * 10**decimals)
        least = whole.min()
        if whole.max() - least > _MOST or abs(least) > 2**50:
            return values
        if (whole / 10**decimals == array).all():
            steps = (whole - least).astype(np.int64) + _FIRST
            if (steps < 128).mean() < _SHORT:
                return values
            return {LETTERS: [decimals, int(least), "".join(map(chr, steps.tolist()))]}
    return values


def _are_rows(values: Sequence[Any]) -> bool:
    """Whether these are some dicts of the same keys in the same order."""
    return len(values) > 1 and all(isinstance(row, dict) and row and list(row) == list(values[0]) for row in values)


def _is_symmetric(values: Sequence[Any]) -> bool:
    """Whether these are the rows of a symmetric matrix of numbers, of three rows or more."""
    n = len(values)
    if n < 3 or not all(isinstance(row, (list, tuple)) and len(row) == n for row in values):
        return False
    return all(
        values[i][j] == values[j][i] and not isinstance(values[i][j], (dict, list)) for i in range(n) for j in range(i)
    )
