"""The statistics of a table: seeds are the replications, never clients, and differences are paired by seed.

Pure functions of lists of accuracies; scipy has the distributions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

SIGNIFICANT = 0.05
"""An adjusted p below this is marked."""
DECIMALS = 9
"""Of a percent, to which accuracies are compared: what differs by less differs by rounding errors."""
LEAST_COLUMNS = 5
"""Tasks from which on methods are compared over all of them."""
MOST_EXACT = 16
"""Seeds up to which all signs are tried; of more, as many as are enough are drawn."""
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Difference:
    """A paired difference of two methods.

    Attributes:
        mean: over seeds.
        low: end of the t-interval; None with one seed.
        high: the other end.
        p: of the exact sign-flip test; None with too few seeds for any p below `SIGNIFICANT`, even of a single test.
        n: seeds that both have.
        seeds_needed: seeds with which the interval would leave out 0, if mean and spread stayed, and the test could be
            significant among as many as there are; None: not known.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    seeds_needed: int | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation with n - 1; none of one value.

    Examples:
        >>> mean_and_sd([1.0, 2.0, 3.0]), mean_and_sd([1.0])
        ((2.0, 1.0), (1.0, None))
    """
    return math.fsum(values) / len(values), float(np.std(values, ddof=1)) if len(values) > 1 else None


def rounded(value: float) -> float:
    """An accuracy, or a difference of two, in percent, without what rounding errors add; see `DECIMALS`.

    Examples:
        >>> 100 * 0.57 == 57, rounded(100 * 0.57) == 57
        (False, True)
    """
    return round(value, DECIMALS)


def least_p(replications: int, comparisons: int = 1) -> float:
    """The smallest p, adjusted by Holm, that a two-sided exact test of signs can have.

    The 2^n choices of signs are equally likely where there is no difference, and two of them are the most extreme;
    Holm multiplies the smallest p by the number of tests. True of the sign-flip test and of Wilcoxon's.

    Args:
        replications: n, seeds or columns.
        comparisons: tests that are adjusted together.

    Examples:
        >>> least_p(6), least_p(6, comparisons=2)
        (0.03125, 0.0625)
    """
    return min(1.0, comparisons * 2.0 ** (1 - replications))


def least_replications(comparisons: int = 1) -> int:
    """The least number of seeds, or of columns, with which one of so many tests can be significant.

    Args:
        comparisons: tests that are adjusted together.

    Examples:
        >>> [least_replications(comparisons) for comparisons in (1, 2, 3, 4, 7)]
        [6, 7, 7, 8, 9]
    """
    return next(n for n in itertools.count(1) if least_p(n, comparisons) < SIGNIFICANT)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of a mean, by Student's t; None with fewer than two values.

    Examples:
        >>> t_interval([1.0, 2.0, 3.0])
        (-0.484..., 4.484...)
    """
    mean, sd = mean_and_sd(values)
    if sd is None:
        return None
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * sd / math.sqrt(len(values))
    return mean - half, mean + half


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact sign-flip test: all 2^n signs are equally likely where there is no difference.

    Examples:
        >>> sign_flip_p([1.0, 2.0, 3.0]), sign_flip_p([1.0, 1.0, 1.0, 1.0, 1.0])
        (0.25, 0.0625)
    """
    values = np.abs(np.asarray(differences, dtype=np.float64))
    seen = abs(float(np.sum(differences)))
    slack = 1e-12 * float(values.sum())
    if len(values) <= MOST_EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    else:  # drawn, and the seen one with them
        draws = np.random.default_rng(0).choice((1.0, -1.0), size=(99_999, len(values)))
        signs = np.vstack([np.sign(differences), draws])
    return float(np.mean(np.abs(signs @ values) >= seen - slack))


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], comparisons: int = 1
) -> Difference | None:
    """First minus second, over the seeds that both have; None where there is no such seed.

    Args:
        first: accuracy by seed, in percent.
        second: likewise.
        comparisons: differences that are tested together.
    """
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        return None
    values = [rounded(first[seed] - second[seed]) for seed in seeds]
    mean, sd = mean_and_sd(values)
    low, high = t_interval(values) or (None, None)
    p = sign_flip_p(values) if len(values) >= least_replications() else None
    needed = None if sd is None else seeds_needed(mean, sd, comparisons)
    return Difference(mean, low, high, p, len(values), needed)


def seeds_needed(mean: float, sd: float, comparisons: int = 1, most: int = 1000) -> int | None:
    """The least number of seeds with a t-interval that excludes 0, and with which a test can be significant.

    Args:
        mean: of the differences.
        sd: their standard deviation.
        comparisons: differences that are tested together.
        most: seeds to consider; where these are too few, the answer is None.

    Examples:
        >>> seeds_needed(1.0, 1.0), seeds_needed(5.0, 1.0), seeds_needed(5.0, 1.0, comparisons=4)
        (7, 6, 8)
        >>> print(seeds_needed(0.0, 1.0))
        None
    """
    for n in range(least_replications(comparisons), most + 1):
        if float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n) < abs(mean):
            return n
    return None


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p of several tests, in their order.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda at: values[at])
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[at]))
        adjusted[at] = highest
    return adjusted


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b of two orders of the same rows.

    Attributes:
        tau: -1 to 1.
        n: rows that both have.
    """

    tau: float
    n: int


def agreement(published: Mapping[str, float], measured: Mapping[str, float]) -> Agreement | None:
    """Kendall's tau of the published and the measured order of rows; None with fewer than two rows or equal values.

    Args:
        published: accuracy by row.
        measured: accuracy by row.
    """
    rows = [row for row in published if row in measured]
    if len(rows) < 2:
        return None
    ours, theirs = [rounded(measured[row]) for row in rows], [rounded(published[row]) for row in rows]
    if len(set(ours)) == 1 or len(set(theirs)) == 1:
        return None
    return Agreement(float(stats.kendalltau(theirs, ours).statistic), len(rows))


@dataclass(frozen=True)
class Overall:
    """A comparison of rows over several columns, of which each counts once.

    Attributes:
        ranks: mean rank of each row, 1 = best.
        p: of Friedman's test that all rows are alike; None of two rows.
        against_best: Holm's adjusted p of Wilcoxon's signed-rank test of each other row with the best.
        best: the row with the best mean rank.
        columns: number of them.
    """

    ranks: dict[str, float]
    p: float | None
    against_best: dict[str, float]
    best: str
    columns: int


def over_columns(means: Mapping[str, Sequence[float]], lower_is_better: bool = False) -> Overall | None:
    """Compare rows over columns; None of fewer than two rows or `LEAST_COLUMNS` columns.

    Args:
        means: each row's mean in each column, the same columns for all.
        lower_is_better: as of a variance.
    """
    rows = list(means)
    table = np.array([[rounded(mean) for mean in means[row]] for row in rows], dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < LEAST_COLUMNS:
        return None
    ranks = stats.rankdata(table if lower_is_better else -table, axis=0).mean(axis=1)
    best = int(np.argmin(ranks))
    others = [at for at in range(len(rows)) if at != best]
    pairs = [wilcoxon_p([rounded(d) for d in table[best] - table[at]]) for at in others]
    against = {rows[at]: value for at, value in zip(others, holm(pairs), strict=True)}
    p = _friedman_p(table) if len(rows) > 2 else None
    return Overall(dict(zip(rows, map(float, ranks), strict=True)), p, against, rows[best], int(table.shape[1]))


def wilcoxon_p(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, exact where differences are equal too; zeros are left out.

    Args:
        differences: one a column.

    Examples:
        >>> wilcoxon_p([1.0, 1.0, 1.0, 1.0, 1.0]), wilcoxon_p([0.0, 0.0])
        (0.0625, 1.0)
    """
    values = np.array([value for value in differences if value])
    if not len(values):
        return 1.0
    return sign_flip_p(list(np.sign(values) * stats.rankdata(np.abs(values))))


def _friedman_p(table: np.ndarray) -> float:
    """Of rows [rows, columns]; 1 where all rows are equal in each column, of which the statistic is 0 / 0."""
    return float(stats.friedmanchisquare(*table).pvalue) if (table != table[0]).any() else 1.0
