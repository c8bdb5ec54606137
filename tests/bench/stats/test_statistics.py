"""The statistics of tables, against scipy, closed forms and numbers that were computed by hand."""

import functools
import itertools
import math
import operator

import numpy as np
import pytest
from scipy import stats

from dfl_lightning.bench.stats import statistics as ours


def test_interval_of_a_paired_difference_equals_the_paired_t_test():
    first, second = [84.1, 83.2, 85.0, 84.4], [81.0, 82.9, 82.2, 83.9]
    found = ours.paired_difference(dict(enumerate(first)), dict(enumerate(second)))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(1.675)
    assert found.count == 4


def test_only_seeds_that_both_have_are_paired():
    found = ours.paired_difference({0: 1.0, 1: 5.0, 2: 9.0}, {2: 4.0, 1: 4.0, 7: 100.0})
    assert (found.mean, found.count) == (3.0, 2)
    # two differences 1 and 5: half the width is t(1) times their sd over sqrt(2) = 12.7062 * 2
    assert (found.low, found.high) == pytest.approx((3 - 25.41241, 3 + 25.41241), rel=1e-6)
    assert ours.paired_difference({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("unit", [1.0, 2.0**-40, 2.0**40])
def test_comparison_does_not_depend_on_the_scores_unit(unit):
    first, second = ({seed: unit * (base + seed / 7) for seed in range(7)} for base in (20.5, 20.375))
    found = ours.paired_difference(first, second)  # equal up to rounding errors: 0.125 for every seed
    half = stats.t.ppf(0.975, 6) * ((1 / 7 - 1 / 8) / math.sqrt(6)) / math.sqrt(7)  # of rounding to the step
    assert (found.low, found.high) == pytest.approx((unit * (0.125 - half), unit * (0.125 + half)))
    assert found.mean == pytest.approx(unit / 8)
    assert found.is_clear
    assert found.p == 2 / 2**7


def test_one_seed_has_no_interval_and_no_test():
    found = ours.paired_difference({3: 80.0}, {3: 78.0})
    assert (found.mean, found.low, found.high, found.p, found.seeds_needed) == (2.0, None, None, None, None)
    assert not found.is_clear


@pytest.mark.parametrize(("n", "least"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125), (10, 2 / 2**10)])
def test_the_least_p_of_the_sign_flip_test_is_known(n, least):
    assert ours.sign_flip_p([1.0 + i for i in range(n)]) == pytest.approx(least)
    assert ours.sign_flip_p([-1.0 - i for i in range(n)]) == pytest.approx(least)


def test_the_sign_flip_test_is_scipys_permutation_test():
    values = np.random.default_rng(1).normal(0.4, 1.0, 9)
    expected = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert ours.sign_flip_p(list(values)) == pytest.approx(expected.pvalue)


def test_the_sign_flip_test_counts_all_signs():
    values = [0.3, -0.1, 0.5, 0.2, -0.4, 0.6, 0.2]
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=7)
    ]
    expected = sum(one >= abs(sum(values)) - 1e-12 for one in sums) / 2**7
    assert ours.sign_flip_p(values) == pytest.approx(expected)


def test_many_seeds_draw_signs():
    values = list(np.random.default_rng(2).normal(0.5, 1.0, 20))
    normal = 2 * stats.norm.sf(abs(sum(values)) / math.sqrt(sum(v * v for v in values)))
    assert ours.sign_flip_p(values) == pytest.approx(normal, abs=0.01)
    assert ours.sign_flip_p([1.0] * 20) > 0  # what was seen is one of the draws


def test_p_needs_six_seeds():
    five = {seed: 10.0 + seed for seed in range(5)}
    six = {seed: 10.0 + seed for seed in range(6)}
    zero = dict.fromkeys(range(6), 0.0)
    assert ours.paired_difference(five, zero).p is None
    assert ours.paired_difference(six, zero).p == pytest.approx(0.03125)


@pytest.mark.parametrize("comparisons", range(1, 12))
def test_seeds_needed_grow_with_the_number_of_comparisons(comparisons):
    needed = ours.least_replications(comparisons)
    least = lambda n: min(1.0, comparisons * ours.sign_flip_p([1.0] * n))  # noqa: E731
    assert least(needed) < 0.05 <= least(needed - 1)
    assert least(needed) == pytest.approx(ours.least_p(needed, comparisons))


def test_seeds_needed_are_enough_for_a_test_among_others():
    zero, ten = dict.fromkeys(range(4), 0.0), {seed: 10.0 + seed / 100 for seed in range(4)}
    assert [ours.paired_difference(ten, zero, rows).seeds_needed for rows in (2, 3, 4, 8)] == [6, 7, 8, 11]


def test_rounding_differences_count_as_zero():
    hundred = {seed: 100 * value for seed, value in enumerate((0.57, 0.29, 0.58))}
    found = ours.paired_difference(hundred, {0: 57.0, 1: 29.0, 2: 58.0})
    assert hundred[0] != 57.0
    assert (found.mean, found.low, found.high, found.is_clear) == (0, 0, 0, False)


def test_equal_means_share_their_rank():
    a, b = [100 * 0.57, 100 * 0.29, 10.0, 10.0, 10.0], [57.0, 29.0, 10.0, 10.0, 10.0]
    found = ours.over_columns({"a": a, "b": b, "c": [1.0] * 5})
    assert found.ranks == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert found.against_best["b"] == 1.0
    assert ours.agreement({"x": 1.0, "y": 2.0}, {"x": 57.0, "y": 100 * 0.57}) is None
    alike = ours.over_columns({row: [1.0] * 5 for row in "abc"})
    assert (alike.p, alike.against_best) == (1.0, {"b": 1.0, "c": 1.0})


def test_a_mean_does_not_depend_on_the_order_of_seeds():
    values = [0.1, 0.2, 0.3, 0.7]
    assert len({ours.spread(order).mean for order in itertools.permutations(values)}) == 1
    assert len({functools.reduce(operator.add, order) for order in itertools.permutations(values)}) > 1


def test_wilcoxons_test_is_exact_with_equal_differences_too():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = rng.integers(-2, 5, 7).astype(float)
        kept = values[values != 0]
        ranks = stats.rankdata(np.abs(kept))
        seen = abs(float(np.sum(np.sign(kept) * ranks)))
        sums = [abs(float(np.dot(signs, ranks))) for signs in itertools.product((1, -1), repeat=len(kept))]
        assert ours.wilcoxon_p(list(values)) == pytest.approx(np.mean([one >= seen for one in sums]))
        distinct = list(rng.normal(0.3, 1.0, 8))
        assert ours.wilcoxon_p(distinct) == pytest.approx(stats.wilcoxon(distinct).pvalue)
    assert ours.wilcoxon_p([1.0] * 5) == 0.0625


@pytest.mark.parametrize("effect", [0.4, 0.8, 1.0, 1.5, 10.0])
def test_as_many_seeds_are_named_as_the_interval_needs(effect):
    n = ours.seeds_needed(effect, 1.0)
    half = lambda n: stats.t.ppf(0.975, n - 1) / math.sqrt(n)  # noqa: E731
    assert half(n) < effect
    assert n == 6 or half(n - 1) >= effect


def test_comparisons_are_adjusted_for_all_remaining_pairs():
    assert ours.adjusted([0.01, 0.04, 0.03, 0.001]) == pytest.approx([0.06, 0.09, 0.09, 0.01])
    assert ours.adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert ours.adjusted([0.03]) == [0.03]
    assert ours.adjusted([]) == []


def test_agreement_is_kendalls_tau_of_the_common_rows():
    published = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "not measured": 9.0}
    measured = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 4.0, "not published": 0.0}
    # five of the six pairs are in the same order
    assert (ours.agreement(published, measured).tau, ours.agreement(published, measured).n) == (pytest.approx(4 / 6), 4)
    assert ours.agreement({"a": 1.0}, {"a": 1.0}) is None
    assert ours.agreement({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}) is None


def test_rows_are_compared_over_five_columns_or_more():
    means = {"a": [5.0, 5, 5, 5, 5, 5], "b": [4.0, 4.5, 4, 3, 2, 1], "c": [3.0, 3.5, 3, 2, 1, 3]}
    found = ours.over_columns(means)
    assert found.ranks == pytest.approx({"a": 1.0, "b": 13 / 6, "c": 17 / 6})
    assert found.best == "a"
    assert found.p == pytest.approx(stats.friedmanchisquare(*means.values()).pvalue)
    against = [stats.wilcoxon(np.subtract(means["a"], means[row])).pvalue for row in ("b", "c")]
    assert found.against_best == pytest.approx(dict(zip("bc", ours.adjusted(against), strict=True)))
    assert ours.over_columns({row: values[:4] for row, values in means.items()}) is None
    assert ours.over_columns({"a": means["a"]}) is None


def test_two_rows_have_wilcoxons_test_only():
    found = ours.over_columns({"a": [2.0] * 6, "b": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]})
    assert found.p is None
    assert found.against_best == {"b": pytest.approx(2 / 2**6)}
    assert ours.over_columns({"a": [2.0] * 6, "b": [2.0] * 6}).against_best == {"b": 1.0}


def test_the_spread_has_n_minus_one():
    assert ours.spread([1.0, 2.0, 4.0]) == ours.Spread(pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
