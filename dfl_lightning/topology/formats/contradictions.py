"""Contradictory entries of graph files."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class ContradictionError(ValueError):
    """A graph file has contradictory or meaningless entries; the message names their lines."""


class EdgeList:
    """The links of a file that is read line by line, in which a link may be repeated with the same weight only.

    Args:
        directed: True if a link in the other direction is another link.
    """

    def __init__(self, directed: bool = False) -> None:
        self._first: dict[Hashable, tuple[int, Any]] = {}
        self._directed = directed

    def add(self, line: int, a: str, b: str, weight: Any) -> None:
        """Add a link.

        Args:
            line: number of the line in the file.
            a: name of a node.
            b: name of the other node.
            weight: weight of the link; None: it has none.

        Raises:
            ContradictionError: an earlier line gives the link another weight, or only one of the lines gives a weight.
        """
        ends = (a, b) if self._directed else frozenset((a, b))
        former, former_weight = self._first.setdefault(ends, (line, weight))
        if a != b and former_weight != weight:
            raise ContradictionError(
                f"lines {former} and {line} give the link {a[:40]} - {b[:40]} different weights "
                f"({_weight(former_weight)} and {_weight(weight)}); keep one"
            )


def _weight(value: Any) -> str:
    return "none" if value is None else repr(value)[:30]
