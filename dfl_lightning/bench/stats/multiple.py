"""Comparisons of several methods with the best one, which is chosen by the same numbers.

The more methods there are, the more often some pair of equal methods differs by chance, and the method that seems best
was chosen because it is above the others. Therefore the tests are adjusted for all k (k - 1) / 2 pairs of k methods,
not only for the k - 1 pairs with the best one. Each pair has a paired t-test with its own variance, since methods
differ in their noise. A closed procedure adjusts the tests (Marcus, Peritz and Gabriel 1976): it tests each set of m
methods by Bonferroni over its m (m - 1) / 2 pairs. So at most 5 % of pages call a method worse that is equal to the
best one; docs/reports.md has simulations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

from scipy.special import stdtr, stdtrit

from dfl_lightning.bench.stats.statistics import LEVEL, SIGNIFICANT, Interval, pairs_among

Key = TypeVar("Key", bound=Hashable)

LARGEST_T = 10.0
"""Largest critical t of a test: with so few seeds that t must exceed this, a difference is not judged, since it would
rest on the variance of two or three numbers."""


def p_of(difference: Interval) -> float:
    """Compute the two-sided p of the t-test from its 95 % interval; 1 with one pair.

    Args:
        difference: mean difference of two methods, paired by seed, with its interval.

    Examples:
        >>> round(p_of(Interval(2.0, 0.0, 4.0, 5)), 4)
        0.05
    """
    if difference.low is None or difference.high is None:
        return 1.0
    half = (difference.high - difference.low) / 2
    if half == 0:
        return 0.0 if difference.mean else 1.0
    t = abs(difference.mean) / half * _quantile(difference.count, 1 - LEVEL)
    return 2 * float(stdtr(difference.count - 1, -t))


def simultaneous(difference: Interval, methods: int) -> Interval:
    """Compute the simultaneous interval: with 95 % the intervals of all pairs of methods hold at once (Bonferroni).

    Args:
        difference: mean difference of two of the methods, with the interval of this pair alone.
        methods: number of methods that are compared.

    Examples:
        >>> wide = simultaneous(Interval(2.0, 0.0, 4.0, 5), 3)
        >>> round(wide.low, 2), round(wide.high, 2)
        (-0.85, 4.85)
    """
    if difference.low is None or difference.high is None:
        return difference
    wider = _quantile(difference.count, SIGNIFICANT / pairs_among(methods)) / _quantile(difference.count, SIGNIFICANT)
    half = (difference.high - difference.low) / 2 * wider
    return replace(difference, low=difference.mean - half, high=difference.mean + half)


def least_seeds(methods: int) -> int:
    """Return the least number of common seeds with which differences are judged; see `LARGEST_T`.

    Args:
        methods: number of methods that are compared with each other.

    Examples:
        >>> [least_seeds(methods) for methods in (2, 3, 6, 10, 30)]
        [3, 3, 4, 5, 7]
    """
    level = SIGNIFICANT / pairs_among(methods)
    return next(n for n in itertools.count(2) if _quantile(n, level) <= LARGEST_T)


def judged_among(differences: Mapping[Key, Interval]) -> list[Key]:
    """List the methods whose difference to the best one is judged.

    Each of them has at least `least_seeds` seeds in common with the best one; the fewer methods are judged, the fewer
    seeds that takes. Therefore those with fewest seeds are left out until the others have enough.

    Args:
        differences: difference to the best method, by method.

    Examples:
        >>> judged_among({"A": Interval(1.0, 0.0, 2.0, 5), "B": Interval(1.0, None, None, 1)})
        ['A']
    """
    keys = sorted(differences, key=lambda key: differences[key].count)
    while keys and differences[keys[0]].count < least_seeds(len(keys) + 1):
        keys = [key for key in keys if differences[key].count > differences[keys[0]].count]
    return keys


def _quantile(count: int, level: float) -> float:
    """Return the two-sided critical t for the mean of `count` numbers.

    Args:
        count: number of values.
        level: probability that |t| exceeds the result.
    """
    return float(stdtrit(count - 1, 1 - level / 2)) if count > 1 else math.inf
