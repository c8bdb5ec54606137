"""The best method when each seed is left out: whether its lead is due to one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.stats.common_seeds import over_common_seeds
from dfl_lightning.bench.stats.statistics import rounded, spread


@dataclass(frozen=True)
class Lead:
    """The lead of the best row over the second one.

    Attributes:
        first: row with the best mean; the best row over all seeds if that is equal to others.
        second: row with the second best mean.
        margin: distance of the two means, 0 or more.
    """

    first: str
    second: str
    margin: float


@dataclass(frozen=True)
class LeaveOneOut:
    """The lead over all common seeds, and the leads without each of them.

    Attributes:
        whole: lead over all common seeds.
        without: lead over the other seeds, by the seed that is left out.
    """

    whole: Lead
    without: dict[Any, Lead]

    @property
    def changes(self) -> dict[Any, Lead]:
        """The leads of other rows, by the seed that is left out; empty if the lead is not due to one seed."""
        return {seed: lead for seed, lead in self.without.items() if lead.first != self.whole.first}

    @property
    def least(self) -> tuple[Any, Lead]:
        """The seed without which the lead is smallest, and that lead."""
        return min(self.without.items(), key=lambda item: rounded(item[1].margin))


def leave_one_out(values: Mapping[str, Mapping[Any, float]], lower_is_better: bool = False) -> LeaveOneOut | None:
    """Find the best row over the common seeds, and again without each of these seeds.

    Args:
        values: numbers by row and seed; instead of a seed, the key may be anything that is equal in paired runs.
        lower_is_better: True for numbers such as an error.

    Returns:
        The leads; None with fewer than two rows or two common seeds.

    Examples:
        >>> found = leave_one_out({"A": {0: 90.0, 1: 60.0, 2: 61.0}, "B": {0: 70.0, 1: 62.0, 2: 63.0}})
        >>> found.whole, found.changes
        (Lead(first='A', second='B', margin=5.33...), {0: Lead(first='B', second='A', margin=2.0)})
    """
    choice = over_common_seeds(values, lower_is_better)
    if choice is None or len(choice.means) < 2 or len(choice.seeds) < 2:
        return None

    def lead(seeds: list[Any], favoured: str) -> Lead:
        sign = -1 if lower_is_better else 1
        merits = {row: rounded(sign * spread([values[row][seed] for seed in seeds]).mean) for row in choice.means}
        first, second, *_ = sorted(merits, key=lambda row: (-merits[row], row != favoured))
        return Lead(first, second, merits[first] - merits[second])

    whole = lead(choice.seeds, choice.best)
    without = {seed: lead([other for other in choice.seeds if other != seed], whole.first) for seed in choice.seeds}
    return LeaveOneOut(whole, without)
