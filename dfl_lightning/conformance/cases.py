"""The cases as they are read from their files, and the comparison of what was expected with what was found."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MethodCase", "MethodCases", "difference", "read_all", "read_cases"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class MethodCase:
    """One example of a method.

    Attributes:
        name: of the case.
        inputs: by name; arrays, lists of arrays where clients differ in size, numbers, words, true or false.
        outputs: what the method makes of them, by name.
    """

    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class MethodCases:
    """A file of cases.

    Attributes:
        method: the name of the file, and of an adapter's function.
        name: of the method.
        configs: options of `dfl-fit` under which this library computes it.
        paper: where it was published.
        equation: section, algorithm and equations.
        does: what is computed, in a sentence or two.
        inputs: what each input is.
        outputs: what each output is.
        main: outputs that an adapter must give; others may be left out.
        readings: what the paper leaves open: question, chosen, why.
        tolerance: largest difference, absolute below 1 and relative above, under which numbers agree.
        cases: the examples.
    """

    method: str
    name: str
    configs: tuple[str, ...]
    paper: str
    equation: str
    does: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    main: tuple[str, ...]
    readings: tuple[dict[str, str], ...]
    tolerance: float
    cases: tuple[MethodCase, ...]


def read_cases(file: Path) -> MethodCases:
    """Read the cases of one method.

    Args:
        file: of JSON.
    """
    found = json.loads(file.read_text(encoding="utf-8"))
    cases = tuple(
        MethodCase(case["name"], _arrays(case["inputs"]), _arrays(case["outputs"])) for case in found.pop("cases")
    )
    configs, main, readings = (tuple(found.pop(name)) for name in ("configs", "main", "readings"))
    return MethodCases(**found, configs=configs, main=main, readings=readings, cases=cases)


def read_all() -> dict[str, MethodCases]:
    """Read the cases of all methods, by method, in alphabetical order."""
    return {file.stem: read_cases(file) for file in sorted(FOLDER.glob("*.json"))}


def difference(expected: Any, found: Any) -> float:
    """Measure how far a result is from the expected: the largest difference of an entry, over its size if above 1.

    Whole numbers, true and false, and where numbers are unknown (NaN) must be equal; otherwise, and where shapes
    differ, the difference is infinite.

    Args:
        expected: an array or a number.
        found: whatever numpy makes an array of.

    Examples:
        >>> difference(np.array([1.0, np.nan, 200.0]), [1.25, np.nan, 201.0])
        0.25
        >>> difference(np.array([True, False]), np.array([True, True])), difference(np.ones(2), np.ones(3))
        (inf, inf)
    """
    expected = np.asarray(expected)
    try:
        found = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        return math.inf
    if expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected.astype(np.float64), found) else math.inf
    if not np.array_equal(np.isnan(expected), np.isnan(found)):
        return math.inf
    known = ~np.isnan(expected)
    expected, found = expected[known], found[known]
    if not expected.size:
        return 0.0
    apart = np.abs(expected - found) / np.maximum(1.0, np.abs(expected))
    return float(apart.max()) if np.isfinite(found).all() else math.inf


def _arrays(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _array(value) for name, value in values.items()}


def _array(value: Any) -> Any:
    """Lists of numbers as arrays, null in them as NaN; a list of lists that differ in length stays a list."""
    if not isinstance(value, list):
        return value
    if _shape(value) is None:
        return [_array(part) for part in value]
    flat = list(_leaves(value))
    if any(isinstance(leaf, str) for leaf in flat):
        return value
    if all(isinstance(leaf, bool) for leaf in flat) and flat:
        return np.array(value, dtype=bool)
    if all(isinstance(leaf, int) for leaf in flat) and flat:
        return np.array(value, dtype=np.int64)
    return np.array(value, dtype=np.float64)  # null becomes NaN


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of nested lists; None where they differ in length."""
    if not isinstance(value, list):
        return ()
    parts = {_shape(part) for part in value}
    if len(parts) > 1 or None in parts:
        return None
    return (len(value), *(parts.pop() or ())) if parts else (0,)


def _leaves(value: Any) -> Any:
    if isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value
