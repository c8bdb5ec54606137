"""Compact form of a page's data: columns instead of rows, half of a symmetric matrix, letters instead of numbers.

The script `expand.js` restores the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

COLUMNS, HALF, LETTERS = "@columns", "@half", "@letters"
"""Keys that mark a compact list of rows, symmetric matrix, or list of numbers."""

_LEAST, _MOST = 8, 50_000
"""Least length of a list of numbers that becomes letters, and the largest range: codes stay below surrogates."""

_FIRST, _DECIMALS = 35, 5
"""Code of the first letter, after the quotation mark, and the largest number of digits after the point."""

_SHORT = 0.9
"""Least share of letters that take one byte: if more letters take two or three bytes, digits are shorter."""


def compact(value: Any) -> Any:
    """Convert data to a compact form, at any depth.

    Rows with the same names become columns, symmetric matrices their lower half, and long lists of numbers letters.

    Args:
        value: made of JSON's types.

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
        return {HALF: [compact(row[: index + 1]) for index, row in enumerate(value)]}
    return [compact(inner) for inner in value]


def _as_letters(values: Sequence[Any]) -> Any:
    """Convert numbers to `[decimals, least, letters]`, a letter for each number; return other lists as they are.

    A letter takes few bits when the page is compressed.
    """
    if len(values) < _LEAST or not isinstance(values[0], (int, float)):
        return values
    try:
        array = np.array(values)
    except ValueError:  # some values are lists
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
    """Return True for two or more dicts with the same keys in the same order."""
    return len(values) > 1 and all(isinstance(row, dict) and row and list(row) == list(values[0]) for row in values)


def _is_symmetric(values: Sequence[Any]) -> bool:
    """Return True for the rows of a symmetric matrix of numbers with at least three rows."""
    n = len(values)
    if n < 3 or not all(isinstance(row, (list, tuple)) and len(row) == n for row in values):
        return False
    return all(
        values[i][j] == values[j][i] and not isinstance(values[i][j], (dict, list)) for i in range(n) for j in range(i)
    )
