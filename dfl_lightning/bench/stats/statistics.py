"""The statistics of tables and of the report: seeds are the replications, never clients, and differences are paired.

Pure functions of lists of accuracies; scipy has the distributions and the tests. `scipy.stats` takes a second to
import, therefore the functions that need it import it themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

SIGNIFICANT = 0.05
"""An adjusted p below this is marked."""
DIGITS = 11
"""To so many, of the largest of them, scores are compared: what differs by less differs by rounding errors."""
LEAST_COLUMNS = 5
"""Tasks from which on methods are compared over all of them."""
MOST_SIGNS = 2**16
"""Choices of signs that the sign-flip test tries: all of them up to 16 seeds, of more seeds as many drawn ones."""
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds.

    Attributes:
        mean: NaN where nothing is known.
        sd: standard deviation (n - 1); None with fewer than two seeds.
        count: seeds.
    """

    mean: float
    sd: float | None
    count: int


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences of two methods, and its 95 % confidence interval by Student's t.

    Attributes:
        mean: over seeds.
        low: end of the interval; None with one seed.
        high: the other end.
        count: seeds that both have.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Difference(Interval):
    """An interval with a test.

    Attributes:
        p: of the exact sign-flip test; None with too few seeds for any p below `SIGNIFICANT`, even of a single test.
        seeds_needed: seeds with which the t-test would tell the two apart among as many rows as there are, if mean and
            spread stayed, and the sign-flip test could; None: not known.
    """

    p: float | None
    seeds_needed: int | None


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the finite numbers among the values.

    Examples:
        >>> spread([1.0, 2.0, 3.0]), spread([1.0, math.nan])
        (Spread(mean=2.0, sd=1.0, count=3), Spread(mean=1.0, sd=None, count=1))
    """
    known = [float(value) for value in values if math.isfinite(value)]
    if not known:
        return Spread(math.nan, None, 0)
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(math.fsum(known) / len(known), sd, len(known))


def spread_of_all(values: Sequence[float]) -> Spread:
    """Compute mean and standard deviation; NaN if a value is not finite, since the others alone would look better.

    Args:
        values: a mean over clients of each seed, NaN or infinite where that of a client is not finite.

    Examples:
        >>> spread_of_all([1.0, math.nan])
        Spread(mean=nan, sd=None, count=2)
    """
    return Spread(math.nan, None, len(values)) if not all(map(math.isfinite, values)) else spread(values)


def rounded(value: float, scale: float | None = None) -> float:
    """A score, or a difference of two, without what rounding errors add; see `DIGITS`.

    Args:
        value: to round; what is not finite stays.
        scale: size of the scores that `value` comes from; None: its own.

    Examples:
        >>> 100 * 0.57 == 57, rounded(100 * 0.57) == 57
        (False, True)
        >>> rounded(0.3 - (0.1 + 0.2), scale=0.3), rounded(3e-15 - 2e-15, scale=3e-15)
        (0.0, 1e-15)
    """
    size = abs(value if scale is None else scale)
    if not math.isfinite(value) or not math.isfinite(size) or size == 0:
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(size))) + 0.0  # no -0.0


def differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """First minus second of each pair of finite numbers, without what rounding errors add.

    Examples:
        >>> differences([(0.7 + 0.1, 0.8), (0.3, 0.1), (math.nan, 1.0)])
        [0.0, 0.2]
    """
    found = [pair for pair in pairs if all(map(math.isfinite, pair))]
    scale = max((abs(value) for pair in found for value in pair), default=0.0)
    return [rounded(a - b, scale) for a, b in found]


def least_p(replications: int, comparisons: int = 1) -> float:
    """The smallest adjusted p that a two-sided exact test of signs can have.

    The 2^n choices of signs are equally likely where there is no difference, and two of them are the most extreme;
    the adjustment multiplies the smallest p by the number of tests. True of the sign-flip test and of Wilcoxon's.

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
    found = spread(values)
    if found.sd is None:
        return None
    half = _half_width(found.sd, found.count)
    return found.mean - half, found.mean + half


def _half_width(sd: float, count: int, outside: float = SIGNIFICANT) -> float:
    """Return half of the width of the confidence interval of a mean.

    Args:
        sd: standard deviation of the values.
        count: their number.
        outside: probability that the interval does not hold the mean.
    """
    return float(stdtrit(count - 1, 1 - outside / 2)) * sd / math.sqrt(count)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact sign-flip test: all 2^n signs are equally likely where there is no difference.

    Examples:
        >>> sign_flip_p([1.0, 2.0, 3.0]), sign_flip_p([1.0, 1.0, 1.0, 1.0, 1.0])
        (0.25, 0.0625)
    """
    from scipy.stats import permutation_test

    if len(differences) < 2:
        return 1.0
    sample = (np.asarray(differences, dtype=np.float64),)
    found = permutation_test(
        sample, np.sum, permutation_type="samples", n_resamples=MOST_SIGNS, batch=4096, random_state=0
    )
    return float(found.pvalue)


def paired_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """First minus second of each pair, with the interval of the mean; None without a pair of finite numbers.

    The standard deviation is at least that of rounding the scores to their step.

    Args:
        pairs: accuracies of two methods, a pair a seed.

    Examples:
        >>> paired_interval([(3.0, 1.0), (5.0, 2.0), (7.0, 3.0)])
        Interval(mean=3.0, low=0.51..., high=5.48..., count=3)
        >>> paired_interval([(3.0, 1.0), (3.0, 1.0)])
        Interval(mean=2.0, low=2.0, high=2.0, count=2)
        >>> paired_interval([(0.1 + 0.2, 0.3), (0.7 + 0.1, 0.8)]).is_clear
        False
    """
    values = differences(pairs)
    if not values:
        return None
    found = spread(values)
    if found.sd is None:
        return Interval(found.mean, None, None, 1)
    least = _step(pairs) / math.sqrt(6) if found.mean else 0.0
    half = _half_width(max(found.sd, least), found.count)
    return Interval(found.mean, found.mean - half, found.mean + half, found.count)


def _step(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the smallest step between two of all scores, 0 where each method has the same score with every seed.

    Scores of few test samples are multiples of a step. Of three equal differences the standard deviation is 0, but not
    what is known of them: each of the two scores was rounded, which alone has a standard deviation of step / sqrt(12).

    Examples:
        >>> _step([(0.80, 0.799), (0.85, 0.849), (0.90, 0.899)])  # of methods that vary together, not 0.05
        0.001
    """
    columns = [{value for value in column if math.isfinite(value)} for column in zip(*pairs, strict=True)]
    if all(len(column) < 2 for column in columns):
        return 0.0
    scores = np.unique([value for column in columns for value in column])
    steps = [rounded(float(step), float(np.abs(scores).max())) for step in np.diff(scores)]
    return min((step for step in steps if step > 0), default=0.0)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float], rows: int = 2) -> Difference | None:
    """First minus second, over the seeds that both have; None where there is no such seed.

    Args:
        first: accuracy by seed, in percent.
        second: likewise.
        rows: that are compared with each other, these two among them.
    """
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    found = paired_interval(pairs)
    if found is None:
        return None
    values = differences(pairs)
    sd = spread(values).sd
    p = sign_flip_p(values) if len(values) >= least_replications() else None
    needed = None if sd is None else seeds_needed(found.mean, sd, rows * (rows - 1) // 2)
    return Difference(**vars(found), p=p, seeds_needed=needed)


def seeds_needed(mean: float, sd: float, comparisons: int = 1, most: int = 1000) -> int | None:
    """The least number of seeds with which the t-test is significant, and the sign-flip test can be.

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
        if _half_width(sd, n, SIGNIFICANT / comparisons) < abs(mean):
            return n
    return None


def pairs_among(methods: int) -> int:
    """Return the number of pairs among some methods.

    Examples:
        >>> pairs_among(2), pairs_among(10)
        (1, 45)
    """
    return methods * (methods - 1) // 2


def adjusted(ps: Sequence[float]) -> list[float]:
    """Adjust the p of comparisons with the best of several methods, in their order.

    A method is told apart from the best where its adjusted p is below 0.05. In order of p, the first comparison counts
    for all pairs of k methods, the next one for those of the k - 1 methods that are left, and so on.

    Args:
        ps: of the other methods, one less than there are methods.

    Examples:
        >>> [round(p, 4) for p in adjusted([0.03, 0.004, 0.01])]
        [0.03, 0.024, 0.03]
    """
    methods, highest = len(ps) + 1, 0.0
    order, found = sorted(range(len(ps)), key=lambda at: ps[at]), [1.0] * len(ps)
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, pairs_among(methods - rank) * ps[at]))
        found[at] = highest
    return found


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
    from scipy.stats import kendalltau

    rows = [row for row in published if row in measured]
    if len(rows) < 2:
        return None
    ours, theirs = [rounded(measured[row]) for row in rows], [rounded(published[row]) for row in rows]
    if len(set(ours)) == 1 or len(set(theirs)) == 1:
        return None
    return Agreement(float(kendalltau(theirs, ours).statistic), len(rows))


@dataclass(frozen=True)
class Overall:
    """A comparison of rows over several columns, of which each counts once.

    Attributes:
        ranks: mean rank of each row, 1 = best.
        p: of Friedman's test that all rows are alike; None of two rows.
        against_best: p of Wilcoxon's signed-rank test of each other row with the best, adjusted for all pairs of rows.
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
    from scipy.stats import rankdata

    rows = list(means)
    table = np.array([[rounded(mean) for mean in means[row]] for row in rows], dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < LEAST_COLUMNS:
        return None
    ranks = rankdata(table if lower_is_better else -table, axis=0).mean(axis=1)
    best = int(np.argmin(ranks))
    others = [at for at in range(len(rows)) if at != best]
    pairs = [wilcoxon_p(differences([*zip(table[best], table[at], strict=True)])) for at in others]
    against = {rows[at]: value for at, value in zip(others, adjusted(pairs), strict=True)}
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
    from scipy.stats import rankdata

    values = np.array([value for value in differences if value])
    if not len(values):
        return 1.0
    return sign_flip_p(list(np.sign(values) * rankdata(np.abs(values))))


def _friedman_p(table: np.ndarray) -> float:
    """Of rows [rows, columns]; 1 where all rows are equal in each column, of which the statistic is 0 / 0."""
    from scipy.stats import friedmanchisquare

    return float(friedmanchisquare(*table).pvalue) if (table != table[0]).any() else 1.0
