"""Cells of a table that were measured several times, alternating with each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Cell = dict[str, Any]


def rotated(systems: Sequence[str], turn: int) -> list[str]:
    """Rotate the order of systems in a turn: each turn starts with the next one.

    Examples:
        >>> rotated(["a", "b", "c"], 4)
        ['b', 'c', 'a']
    """
    first = turn % len(systems)
    return [*systems[first:], *systems[:first]]


def merged(cells: Sequence[Cell]) -> list[Cell]:
    """Merge the cells of each system and number of clients: medians over turns, and ratios to the first system.

    Args:
        cells: of all turns, each with `system`, `clients`, `turn` and what was measured, or an `obstacle`.

    Returns:
        By system, then by clients. `ratio` is the median of the ratios to the first system, compared within each turn;
        a cell that failed in one turn has failed.

    Examples:
        >>> of = lambda system, turn, wall: {"system": system, "clients": 9, "turn": turn, "seconds": {"wall": wall}}
        >>> found = merged([of("a", 0, 2.0), of("b", 0, 3.0), of("b", 1, 8.0), of("a", 1, 4.0), of("a", 2, 1.0)])
        >>> [(cell["seconds"]["wall"], cell["ratio"]) for cell in found]
        [(2.0, 1.0), (5.5, 1.75)]
    """
    turns: dict[tuple[str, int], list[Cell]] = {}
    for system in dict.fromkeys(cell["system"] for cell in cells):
        for clients in sorted({cell["clients"] for cell in cells}):
            several = [cell for cell in cells if (cell["system"], cell["clients"]) == (system, clients)]
            if several:
                turns[system, clients] = several
    first = next(iter(turns), ("", 0))[0]
    return [_merged(several, turns.get((first, clients), [])) for (_, clients), several in turns.items()]


def _merged(several: Sequence[Cell], reference: Sequence[Cell]) -> Cell:
    failed = [cell for cell in several if "obstacle" in cell]
    if failed:
        return failed[0]
    pairs = [(cell, other) for cell in several for other in reference if cell["turn"] == other["turn"]]
    ratios = [a["seconds"]["wall"] / b["seconds"]["wall"] for a, b in pairs if "obstacle" not in b]
    found: Cell = _medians(several)
    return {**found, **({"ratio": statistics.median(ratios)} if ratios else {})}


def _medians(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute medians of the numbers of several dictionaries; other values are those of the first one."""
    found: dict[str, Any] = {}
    for name, value in several[0].items():
        values = [one[name] for one in several]
        if isinstance(value, dict):
            found[name] = _medians(values)
        elif name == "rounds_seconds":
            found[name] = [seconds for one in values for seconds in one]
        elif name == "others":
            found[name] = max((share for share in values if share is not None), default=None)
        elif isinstance(value, int | float) and len(set(values)) > 1:
            found[name] = statistics.median(values)
        else:
            found[name] = value
    return found
