"""Which methods are compared over which seeds: means over different seeds are different tasks' means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.stats.statistics import rounded, spread


@dataclass(frozen=True)
class Comparable:
    """Rows of a column, or methods of a task, that all have the same seeds.

    Attributes:
        means: of each row over these seeds.
        seeds: that all these rows have.
        others: rows that have numbers, but not all these seeds; none of them can be the best.
        same_seeds: whether all rows have these seeds and no others.
        lower_is_better: the best row has the lowest mean.
    """

    means: dict[str, float]
    seeds: list[Any]
    others: list[str]
    same_seeds: bool
    lower_is_better: bool = False

    @property
    def best(self) -> str:
        """The row with the best mean; the first of equal ones."""
        sign = -1 if self.lower_is_better else 1
        return max(self.means, key=lambda row: sign * rounded(self.means[row]))

    def is_best(self, row: str) -> bool:
        """Whether a row's mean is the best one, alone or with others.

        Args:
            row: of the table.
        """
        return row in self.means and rounded(self.means[row]) == rounded(self.means[self.best])


def over_common_seeds(values: Mapping[str, Mapping[Any, float]], lower_is_better: bool = False) -> Comparable | None:
    """The rows and seeds of a column that use most of its cells; None of a column without numbers.

    Rows are added from the one with most seeds to the one with fewest; of the seeds that all of them have, and of all
    rows that have these, the choice with most cells is taken.

    Args:
        values: numbers by row and seed; a seed may be a number, or what else two runs share that are paired.
        lower_is_better: as of a variance.

    Examples:
        >>> found = over_common_seeds({"A": {0: 80.0, 1: 82.0}, "B": {0: 70.0, 1: 71.0}, "C": {7: 99.0}})
        >>> found.means, found.seeds, found.others
        ({'A': 81.0, 'B': 70.5}, [0, 1], ['C'])
    """
    known = {row: of for row, of in values.items() if of}
    if not known:
        return None
    common: list[Any] | None = None
    choices = []
    for row in sorted(known, key=lambda row: -len(known[row])):
        common = [seed for seed in known[row] if common is None or seed in common]
        choices.append(([row for row in known if all(seed in known[row] for seed in common)], common))
    rows, seeds = max((choice for choice in choices if choice[1]), key=lambda choice: len(choice[0]) * len(choice[1]))
    means = {row: spread([known[row][seed] for seed in seeds]).mean for row in rows}
    others = [row for row in known if row not in means]
    same_seeds = all(len(of) == len(seeds) for of in known.values()) and not others
    return Comparable(means, seeds, others, same_seeds, lower_is_better)
