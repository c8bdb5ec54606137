"""Statistics of tables and of the report: the replications are seeds, never clients, and differences are paired.

These are pure functions of lists of scores; distributions and tests come from scipy. Functions that need
`scipy.stats` import it themselves, since the import takes a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

SIGNIFICANT = 0.05
"""A difference is significant if its adjusted p is below this."""
DIGITS = 11
"""Significant digits of the largest score to which scores are compared; what is smaller is a rounding error."""
LEAST_COLUMNS = 5
"""Least number of columns (tasks) for a comparison of methods over all columns."""
MOST_SIGNS = 2**16
"""Choices of signs that the sign-flip test tries: all 2^n up to 16 seeds; with more seeds, this many random ones."""
LEVEL = 0.95
"""Confidence level of the intervals."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds.

    Attributes:
        mean: NaN without values.
        sd: standard deviation (n - 1); None with fewer than two seeds.
        count: number of seeds.
    """

    mean: float
    sd: float | None
    count: int


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences of two methods, and its 95 % confidence interval by Student's t.

    Attributes:
        mean: mean difference over seeds.
        low: lower end of the interval; None with one seed.
        high: upper end of the interval; None with one seed.
        count: number of seeds that both methods have.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Difference(Interval):
    """An interval with a test.

    Attributes:
        p: p of the exact sign-flip test; None with too few seeds for any p below `SIGNIFICANT`, even of a single test.
        seeds_needed: number of seeds with which the difference would be significant among all rows of the table, if
            mean and standard deviation stayed as they are; None if unknown. See the function `seeds_needed`.
    """

    p: float | None
    seeds_needed: int | None


def spread(values: Sequence[float]) -> Spread:
    """Compute mean and standard deviation of the finite values; the others are left out.

    Examples:
        >>> spread([1.0, 2.0, 3.0]), spread([1.0, math.nan])
        (Spread(mean=2.0, sd=1.0, count=3), Spread(mean=1.0, sd=None, count=1))
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return Spread(math.nan, None, 0)
    sd = float(np.std(finite, ddof=1)) if len(finite) > 1 else None
    return Spread(math.fsum(finite) / len(finite), sd, len(finite))


def spread_of_all(values: Sequence[float]) -> Spread:
    """Compute mean and standard deviation; NaN if a value is not finite, since the others alone would look better.

    Args:
        values: for each seed the mean over clients; NaN or infinite if a client's value is not finite.

    Examples:
        >>> spread_of_all([1.0, math.nan])
        Spread(mean=nan, sd=None, count=2)
    """
    return Spread(math.nan, None, len(values)) if not all(map(math.isfinite, values)) else spread(values)


def rounded(value: float, scale: float | None = None) -> float:
    """Round a score, or a difference of two scores, so that rounding errors vanish; see `DIGITS`.

    Args:
        value: returned as it is if not finite.
        scale: magnitude of the scores that `value` was computed from; default: that of `value`.

    Examples:
        >>> 100 * 0.57 == 57, rounded(100 * 0.57) == 57
        (False, True)
        >>> rounded(0.3 - (0.1 + 0.2), scale=0.3), rounded(3e-15 - 2e-15, scale=3e-15)
        (0.0, 1e-15)
    """
    size = abs(value if scale is None else scale)
    if not math.isfinite(value) or not math.isfinite(size) or size == 0:
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(size))) + 0.0  # turns -0.0 into 0.0


def differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Subtract the second from the first number of each finite pair, without rounding errors.

    Examples:
        >>> differences([(0.7 + 0.1, 0.8), (0.3, 0.1), (math.nan, 1.0)])
        [0.0, 0.2]
    """
    finite = [pair for pair in pairs if all(map(math.isfinite, pair))]
    scale = max((abs(value) for pair in finite for value in pair), default=0.0)
    return [rounded(a - b, scale) for a, b in finite]


def least_p(replications: int, comparisons: int = 1) -> float:
    """Compute the smallest adjusted p that a two-sided exact test of signs can have.

    Without a difference all 2^n choices of signs are equally likely, and two of them are the most extreme. The
    adjustment multiplies the smallest p by the number of tests. This holds for the sign-flip test and for Wilcoxon's.

    Args:
        replications: n, the number of seeds or columns.
        comparisons: number of tests that are adjusted together.

    Examples:
        >>> least_p(6), least_p(6, comparisons=2)
        (0.03125, 0.0625)
    """
    return min(1.0, comparisons * 2.0 ** (1 - replications))


def least_replications(comparisons: int = 1) -> int:
    """Return the least number of seeds, or of columns, with which an exact test of signs can be significant.

    Args:
        comparisons: number of tests that are adjusted together.

    Examples:
        >>> [least_replications(comparisons) for comparisons in (1, 2, 3, 4, 7)]
        [6, 7, 7, 8, 9]
    """
    return next(n for n in itertools.count(1) if least_p(n, comparisons) < SIGNIFICANT)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Compute the 95 % confidence interval of a mean by Student's t; None with fewer than two finite values.

    Examples:
        >>> t_interval([1.0, 2.0, 3.0])
        (-0.484..., 4.484...)
    """
    of_values = spread(values)
    if of_values.sd is None:
        return None
    half = _half_width(of_values.sd, of_values.count)
    return of_values.mean - half, of_values.mean + half


def _half_width(sd: float, count: int, outside: float = SIGNIFICANT) -> float:
    """Return half of the width of the confidence interval of a mean.

    Args:
        sd: standard deviation of the values.
        count: number of values.
        outside: probability that the interval does not contain the mean.
    """
    return float(stdtrit(count - 1, 1 - outside / 2)) * sd / math.sqrt(count)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Compute the two-sided p of the exact sign-flip test; 1 with fewer than two differences.

    Without a difference between the methods, all 2^n choices of signs are equally likely. With more than `MOST_SIGNS`
    choices the test draws that many of them, always the same ones.

    Examples:
        >>> sign_flip_p([1.0, 2.0, 3.0]), sign_flip_p([1.0, 1.0, 1.0, 1.0, 1.0])
        (0.25, 0.0625)
    """
    from scipy.stats import permutation_test

    if len(differences) < 2:
        return 1.0
    sample = (np.asarray(differences, dtype=np.float64),)
    test = permutation_test(
        sample, np.sum, permutation_type="samples", n_resamples=MOST_SIGNS, batch=4096, random_state=0
    )
    return float(test.pvalue)


def paired_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Compute the mean of first minus second over pairs, with its 95 % interval; None without a finite pair.

    The standard deviation is at least that of rounding the scores to their step, see `_step`.

    Args:
        pairs: scores of two methods, a pair for each seed.

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
    of_values = spread(values)
    if of_values.sd is None:
        return Interval(of_values.mean, None, None, 1)
    least = _step(pairs) / math.sqrt(6) if of_values.mean else 0.0
    half = _half_width(max(of_values.sd, least), of_values.count)
    return Interval(of_values.mean, of_values.mean - half, of_values.mean + half, of_values.count)


def _step(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the smallest difference between two different scores; 0 if no method's score varies over seeds.

    Scores on few test samples are multiples of a step. Three equal differences have a standard deviation of 0, although
    they are not known exactly: each of the two scores was rounded, which alone has a standard deviation of
    step / sqrt(12).

    Examples:
        >>> _step([(0.80, 0.799), (0.85, 0.849), (0.90, 0.899)])  # over both methods, not within one (0.05)
        0.001
    """
    columns = [{value for value in column if math.isfinite(value)} for column in zip(*pairs, strict=True)]
    if all(len(column) < 2 for column in columns):
        return 0.0
    scores = np.unique([value for column in columns for value in column])
    steps = [rounded(float(step), float(np.abs(scores).max())) for step in np.diff(scores)]
    return min((step for step in steps if step > 0), default=0.0)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float], rows: int = 2) -> Difference | None:
    """Compare two rows over the seeds that both have: first minus second, with a test; None without such a seed.

    Args:
        first: score of the first row by seed.
        second: score of the second row by seed.
        rows: number of rows that are compared with each other, including these two.
    """
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    interval = paired_interval(pairs)
    if interval is None:
        return None
    values = differences(pairs)
    sd = spread(values).sd
    p = sign_flip_p(values) if len(values) >= least_replications() else None
    needed = None if sd is None else seeds_needed(interval.mean, sd, rows * (rows - 1) // 2)
    return Difference(**vars(interval), p=p, seeds_needed=needed)


def seeds_needed(mean: float, sd: float, comparisons: int = 1, most: int = 1000) -> int | None:
    """Estimate the least number of seeds for a significant t-test with which the sign-flip test can be significant too.

    Args:
        mean: mean of the paired differences, assumed to stay.
        sd: standard deviation of the differences, assumed to stay.
        comparisons: number of tests that are adjusted together.
        most: largest number of seeds to consider; if that is too few, the result is None.

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
    """Return the number of pairs of different methods.

    Examples:
        >>> pairs_among(2), pairs_among(10)
        (1, 45)
    """
    return methods * (methods - 1) // 2


def adjusted(ps: Sequence[float]) -> list[float]:
    """Adjust the p values of comparisons with the best of k methods; the order stays.

    A method differs significantly from the best one if its adjusted p is below 0.05. The smallest p is multiplied by
    the number of pairs of k methods, the next one by that of k - 1 methods, and so on; none is adjusted to less than
    the one before it.

    Args:
        ps: p of each of the k - 1 other methods.

    Examples:
        >>> [round(p, 4) for p in adjusted([0.03, 0.004, 0.01])]
        [0.03, 0.024, 0.03]
    """
    methods, highest = len(ps) + 1, 0.0
    order, results = sorted(range(len(ps)), key=lambda index: ps[index]), [1.0] * len(ps)
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, pairs_among(methods - rank) * ps[index]))
        results[index] = highest
    return results


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b of two orders of the same rows.

    Attributes:
        tau: from -1 to 1.
        n: number of rows that both orders have.
    """

    tau: float
    n: int


def agreement(published: Mapping[str, float], measured: Mapping[str, float]) -> Agreement | None:
    """Compute Kendall's tau of the published and the measured order of rows.

    Args:
        published: score by row.
        measured: score by row.

    Returns:
        The agreement; None with fewer than two common rows, or if all published or all measured scores are equal.
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
    """A comparison of rows over several columns; each column counts once.

    Attributes:
        ranks: mean rank of each row, 1 = best.
        p: p of Friedman's test that all rows are alike; None with two rows.
        against_best: p of Wilcoxon's signed-rank test of each other row with the best, adjusted for all pairs of rows.
        best: the row with the best mean rank.
        columns: number of columns.
    """

    ranks: dict[str, float]
    p: float | None
    against_best: dict[str, float]
    best: str
    columns: int


def over_columns(means: Mapping[str, Sequence[float]], lower_is_better: bool = False) -> Overall | None:
    """Compare rows over columns by ranks; None with fewer than two rows or fewer than `LEAST_COLUMNS` columns.

    Args:
        means: mean of each row in each column; all rows have the same columns.
        lower_is_better: True for numbers such as a variance.
    """
    from scipy.stats import rankdata

    rows = list(means)
    table = np.array([[rounded(mean) for mean in means[row]] for row in rows], dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < LEAST_COLUMNS:
        return None
    ranks = rankdata(table if lower_is_better else -table, axis=0).mean(axis=1)
    best = int(np.argmin(ranks))
    others = [row for row in range(len(rows)) if row != best]
    ps = [wilcoxon_p(differences([*zip(table[best], table[row], strict=True)])) for row in others]
    against = {rows[row]: value for row, value in zip(others, adjusted(ps), strict=True)}
    p = _friedman_p(table) if len(rows) > 2 else None
    return Overall(dict(zip(rows, map(float, ranks), strict=True)), p, against, rows[best], int(table.shape[1]))


def wilcoxon_p(differences: Sequence[float]) -> float:
    """Compute the two-sided p of Wilcoxon's signed-rank test, exact also with equal differences; zeros are left out.

    Args:
        differences: one for each column.

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
    """Compute p of Friedman's test for a table [rows, columns]; 1 if all rows are equal (the statistic is 0 / 0)."""
    from scipy.stats import friedmanchisquare

    return float(friedmanchisquare(*table).pvalue) if (table != table[0]).any() else 1.0
