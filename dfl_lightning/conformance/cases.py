"""The cases, which are read from their files, and the comparison of expected and computed outputs."""

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
        name: name of the case.
        inputs: inputs by name: arrays, lists of arrays if clients differ in size, numbers, words, true or false.
        outputs: expected outputs by name.
    """

    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class MethodCases:
    """A file of cases.

    Attributes:
        method: name of the file, and of an adapter's function.
        name: name of the method in sentences.
        configs: options of `dfl-fit` with which this library computes it.
        paper: publication of the method.
        equation: section, algorithm and equations of the paper.
        does: description of what is computed, in a sentence or two.
        inputs: description of each input.
        outputs: description of each output.
        main: outputs that an adapter must return; others may be left out.
        readings: decisions that the paper leaves open: question, chosen, why.
        tolerance: largest difference up to which numbers agree, absolute below 1 and relative above.
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
    """Read the cases of one method from a JSON file."""
    content = json.loads(file.read_text(encoding="utf-8"))
    cases = tuple(
        MethodCase(case["name"], _arrays(case["inputs"]), _arrays(case["outputs"])) for case in content.pop("cases")
    )
    configs, main, readings = (tuple(content.pop(name)) for name in ("configs", "main", "readings"))
    return MethodCases(**content, configs=configs, main=main, readings=readings, cases=cases)


def read_all() -> dict[str, MethodCases]:
    """Read the cases of all methods, by method, in alphabetical order."""
    return {file.stem: read_cases(file) for file in sorted(FOLDER.glob("*.json"))}


def difference(expected: Any, found: Any) -> float:
    """Return the largest difference between entries of a result and the expected ones, relative for entries above 1.

    Whole numbers, true and false, and the places of unknown numbers (NaN) must be equal. Otherwise, or if shapes
    differ, the difference is infinite.

    Args:
        expected: array or number.
        found: anything that numpy can convert to an array.

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
    """Convert lists of numbers to arrays, with null as NaN; lists of different lengths become a list of arrays."""
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
    """Return the shape of nested lists; None if lists differ in length."""
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
