"""Which rows of a column are compared, over which seeds: means over different seeds are different tasks' means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dfl_lightning.report.statistics import rounded, spread
from dfl_lightning.utils.words import counted


@dataclass(frozen=True)
class Comparable:
    """Rows of a column that all have the same seeds.

    Attributes:
        means: of each row over these seeds.
        seeds: that all these rows have.
        others: rows that have numbers, but not all these seeds; none of them can be the best.
        same_seeds: whether all rows have these seeds and no others.
        lower_is_better: the best row has the lowest mean.
    """

    means: dict[str, float]
    seeds: list[int]
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


def comparable(values: Mapping[str, Mapping[int, float]], lower_is_better: bool = False) -> Comparable | None:
    """The rows and seeds of a column that use most of its cells; None of a column without numbers.

    Rows are added from the one with most seeds to the one with fewest; of the seeds that all of them have, and of all
    rows that have these, the choice with most cells is taken.

    Args:
        values: numbers by row and seed.
        lower_is_better: as of a variance.

    Examples:
        >>> found = comparable({"A": {0: 80.0, 1: 82.0}, "B": {0: 70.0, 1: 71.0}, "C": {7: 99.0}})
        >>> found.means, found.seeds, found.others
        ({'A': 81.0, 'B': 70.5}, [0, 1], ['C'])
    """
    known = {row: of for row, of in values.items() if of}
    if not known:
        return None
    common: list[int] | None = None
    choices = []
    for row in sorted(known, key=lambda row: -len(known[row])):
        common = [seed for seed in known[row] if common is None or seed in common]
        choices.append(([row for row in known if all(seed in known[row] for seed in common)], common))
    rows, seeds = max((choice for choice in choices if choice[1]), key=lambda choice: len(choice[0]) * len(choice[1]))
    means = {row: spread([known[row][seed] for seed in seeds]).mean for row in rows}
    others = [row for row in known if row not in means]
    same_seeds = all(len(of) == len(seeds) for of in known.values()) and not others
    return Comparable(means, seeds, others, same_seeds, lower_is_better)


def sentences(
    columns: Mapping[str, Comparable], values: Mapping[tuple[str, str], Mapping[int, float]]
) -> Iterator[str]:
    """What to say below a table of columns whose rows have different seeds.

    Args:
        columns: what is compared in each.
        values: accuracy by seed, by row and column.
    """
    for column, found in columns.items():
        if found.same_seeds:
            continue
        over = f"{counted(len(found.seeds), 'seed')} ({', '.join(map(str, found.seeds))})"
        said = f"rows of {column} have different seeds: the best row, tau and ranks are over the {over} "
        said += f"of {', '.join(found.means)}"
        if found.others:
            said += f"; not among these: {', '.join(found.others)}"
        alone = [row for row in found.others if not values[row, column].keys() & values[found.best, column].keys()]
        if alone:
            said += f"; without a seed in common with {found.best}, so without a difference: {', '.join(alone)}"
        yield said
