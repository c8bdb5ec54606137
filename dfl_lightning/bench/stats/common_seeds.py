"""Choice of the methods that are compared, and of the seeds: means over different seeds cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.stats.statistics import rounded, spread


@dataclass(frozen=True)
class Comparable:
    """Rows of a column, or methods of a task, that all have the same seeds.

    Attributes:
        means: mean of each row over these seeds.
        seeds: seeds that all these rows have.
        others: rows that have numbers, but not all these seeds; none of them can be the best.
        same_seeds: True if all rows have these seeds and no others.
        lower_is_better: True if the best row has the lowest mean.
    """

    means: dict[str, float]
    seeds: list[Any]
    others: list[str]
    same_seeds: bool
    lower_is_better: bool = False

    @property
    def best(self) -> str:
        """The row with the best mean; the first one of equal rows."""
        sign = -1 if self.lower_is_better else 1
        return max(self.means, key=lambda row: sign * rounded(self.means[row]))

    def is_best(self, row: str) -> bool:
        """Return True if the row's mean is the best one, or equal to it."""
        return row in self.means and rounded(self.means[row]) == rounded(self.means[self.best])


def over_common_seeds(values: Mapping[str, Mapping[Any, float]], lower_is_better: bool = False) -> Comparable | None:
    """Choose the rows and the common seeds of a column that use most of its cells; None if it has no numbers.

    Rows are added one by one, from the row with most seeds to the row with fewest. Each step gives a choice: the seeds
    that the added rows have in common, and all rows that have these seeds. The choice with most cells is taken.

    Args:
        values: numbers by row and seed; instead of a seed, the key may be anything that is equal in paired runs.
        lower_is_better: True for numbers such as a variance.

    Examples:
        >>> comparable = over_common_seeds({"A": {0: 80.0, 1: 82.0}, "B": {0: 70.0, 1: 71.0}, "C": {7: 99.0}})
        >>> comparable.means, comparable.seeds, comparable.others
        ({'A': 81.0, 'B': 70.5}, [0, 1], ['C'])
    """
    filled = {row: by_seed for row, by_seed in values.items() if by_seed}
    if not filled:
        return None
    common: list[Any] | None = None
    choices = []
    for row in sorted(filled, key=lambda row: -len(filled[row])):
        common = [seed for seed in filled[row] if common is None or seed in common]
        choices.append(([row for row in filled if all(seed in filled[row] for seed in common)], common))
    rows, seeds = max((choice for choice in choices if choice[1]), key=lambda choice: len(choice[0]) * len(choice[1]))
    means = {row: spread([filled[row][seed] for seed in seeds]).mean for row in rows}
    others = [row for row in filled if row not in means]
    same_seeds = all(len(by_seed) == len(seeds) for by_seed in filled.values()) and not others
    return Comparable(means, seeds, others, same_seeds, lower_is_better)
