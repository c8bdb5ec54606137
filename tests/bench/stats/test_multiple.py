"""Equal methods are not called different, whatever their number; a better one among ten seeds is."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.sentences.verdict import sentences
from dfl_lightning.bench.stats.multiple import judged_among, least_seeds, p_of, simultaneous
from dfl_lightning.bench.stats.statistics import SIGNIFICANT, adjusted, paired_interval
from dfl_lightning.runs.reading import read_run

METHODS, SEEDS = (2, 3, 6, 10, 30), (3, 5, 10)


def told_apart(scores):
    """Compare [k, n] scores as pages and tables do; return the best and, before it, the methods clearly below it."""
    best = int(scores.mean(axis=1).argmax())
    gaps = {
        at: paired_interval([*zip(row.tolist(), scores[best].tolist(), strict=True)])
        for at, row in enumerate(scores)
        if at != best
    }
    judged = judged_among(gaps)
    ps = adjusted([p_of(gaps[at]) for at in judged])
    return {at for at, p in zip(judged, ps, strict=True) if p < SIGNIFICANT}, best


def draw(rng, methods, seeds, noise="normal", step=None):
    """Draw the scores of equal methods: a seed shifts all alike, and each method has noise of its own size."""
    own = rng.standard_normal((methods, seeds)) if noise == "normal" else rng.standard_t(3, (methods, seeds))
    sizes = np.exp(rng.uniform(math.log(0.5), math.log(2.0), (methods, 1)))
    scores = 80 + 2 * rng.standard_normal(seeds) + own * sizes
    return scores if step is None else np.round(scores / step) * step


def wrong(rng, pages, *of, **how):
    """Return the share of pages of equal methods that tell some method apart."""
    return sum(bool(told_apart(draw(rng, *of, **how))[0]) for _ in range(pages)) / pages


def found(rng, pages, methods, seeds=10):
    """Return the share of pages that tell all others from a method that is better by two sd of the difference."""
    hits = 0
    for _ in range(pages):
        scores = rng.standard_normal((methods, seeds))
        scores[0] += 2 * math.sqrt(2)
        hits += told_apart(scores) == (set(range(1, methods)), 0)
    return hits / pages


@pytest.mark.parametrize(("methods", "seeds"), [(2, 5), (6, 4), (10, 5), (30, 7)])
def test_pages_of_equal_methods_call_no_method_lower(methods, seeds):
    pages = 200
    assert wrong(np.random.default_rng(methods), pages, methods, seeds) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)


def test_better_method_is_called_better():
    assert found(np.random.default_rng(1), 60, 10) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "heavy tails", "18 test samples"])
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("methods", METHODS)
def test_at_most_one_page_in_twenty_is_wrong(methods, seeds, noise):
    how = {"normal": {}, "heavy tails": {"noise": "t"}, "18 test samples": {"step": 100 / (18 * 24)}}[noise]
    pages, rng = 4000 if methods < 30 else 1000, np.random.default_rng([methods, seeds])
    share = wrong(rng, pages, methods, seeds, **how)
    print(f"{methods} equal methods, {seeds} seeds, {noise}: {100 * share:.1f} % of pages")
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)


@pytest.mark.slow
@pytest.mark.parametrize("methods", [2, 3, 6, 10])
def test_nine_pages_in_ten_find_the_better_method(methods):
    share = found(np.random.default_rng(methods), 1000, methods)
    print(f"{methods} methods, 10 seeds: the better one is found on {100 * share:.1f} % of pages")
    assert share >= 0.9


@pytest.mark.parametrize(("methods", "judged"), [(6, False), (3, True)])
def test_the_sentences_follow_the_procedure(methods, judged, tmp_path, make_run):
    runs = []
    for at in range(methods):
        for seed in range(3):
            level = 0.9 - 0.1 * (at > 0) + seed / 100 + (at % 3) * (seed % 2) / 500
            config = {"selection": {"class_path": f"M{at}"}}
            runs.append(read_run(make_run(tmp_path / f"{at}-{seed}", [[level] * 2], seed=seed, config=config)))
    said = " ".join(sentences(find_methods(runs)))
    assert ("lower" in said) == judged
    assert ("for 6 methods it takes 4 seeds or more" in said) != judged


def test_p_and_interval_are_those_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(1.0, 1.0, 7), rng.normal(0.0, 1.0, 7)
    gap = paired_interval([*zip(first, second, strict=True)])
    test = stats.ttest_rel(first, second)
    assert p_of(gap) == pytest.approx(test.pvalue)
    wide, bonferroni = simultaneous(gap, 5), test.confidence_interval(1 - 0.05 / 10)
    assert (wide.low, wide.high) == pytest.approx((bonferroni.low, bonferroni.high))


def test_the_steps_are_those_of_the_closed_procedure():
    """Each set of methods with the best and another one is tested by all its pairs; all such tests must reject."""
    for seed in range(40):
        scores = draw(np.random.default_rng(seed), 5, 6) + np.array([[3.0], [1.5], [0.5], [0.0], [0.0]])
        told, best = told_apart(scores)
        p = {(a, b): stats.ttest_rel(scores[a], scores[b]).pvalue for a, b in itertools.permutations(range(5), 2)}
        for other in set(range(5)) - {best}:
            sets = [s for n in range(2, 6) for s in itertools.combinations(range(5), n) if {best, other} <= set(s)]
            of_best = [min(p[best, b] for b in s if b != best) * math.comb(len(s), 2) for s in sets]
            assert (other in told) == all(least < 0.05 for least in of_best)


def test_seeds_needed_follow_from_the_largest_t():
    for methods in METHODS:
        critical = [stats.t.isf(0.025 / math.comb(methods, 2), n - 1) for n in range(2, 12)]
        assert least_seeds(methods) == 2 + next(at for at, t in enumerate(critical) if t <= 10)
