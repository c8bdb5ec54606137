"""Mixing and comparing bare rows, against slow sums in float64 that share no code with them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import compare_row_pairs
from threads import threads

from dfl_lightning.bank import mixing
from dfl_lightning.bank.comparing import similarity
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import mix_rows

seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float32, torch.float64])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def some_rows(m, d, seed=0, dtype=torch.float32):
    return torch.randn(m, d, generator=generator(seed), dtype=torch.float64).to(dtype)


def all_of(rows):
    return Columns([(0, rows.shape[1])])


def neighbours(w, m, k, seed=0):
    """k weights other than zero in each of w rows, which sum to 1."""
    weights = torch.zeros(w, m, dtype=torch.float64)
    for row in weights:
        row[torch.randperm(m, generator=generator(seed + 1))[:k]] = 1 / k
        seed += 1
    return weights


@pytest.fixture(params=[0.0, 2.0], ids=["dense", "sparse"])
def path(request, monkeypatch):
    """Products of matrices only, or sums of neighbours only."""
    monkeypatch.setattr(mixing, "DENSE", request.param)


def on_threads(count, work):
    with threads(count):
        return work()


# --- mixing -----------------------------------------------------------------------------------------------------------
def naive_mix(terms, into, where, columns):
    """Mix number by number, in Python's float64; rows of weight 0 are left out."""
    result = into.double().clone()
    for at, row in enumerate(where.tolist()):
        for start, stop in columns.ranges:
            for column in range(start, stop):
                result[row, column] = math.fsum(
                    float(weights[at, j]) * float(rows[j, column])
                    for weights, rows in terms
                    for j in range(len(rows))
                    if weights[at, j] != 0
                )
    return result


@settings(max_examples=40)
@given(seeds, dtypes, st.integers(1, 7), st.integers(0, 7), st.booleans())
def test_mixing_equals_the_sums_written_out(seed, dtype, m, k, second):
    rows, other = some_rows(m, 23, seed, dtype), some_rows(m + 2, 23, seed + 1, dtype)
    where = torch.randperm(m, generator=generator(seed))[: 1 + seed % m]
    terms = [(neighbours(len(where), m, max(1, min(k, m)), seed), rows)]
    terms[0][0][0] *= min(k, 1)  # sometimes a receiver without senders
    if second:
        terms.append((0.1 * torch.randn(len(where), m + 2, generator=generator(seed)).double(), other))
    columns = Columns([(2, 9), (11, 20)])
    expected = naive_mix(terms, rows, where, columns)
    mix_rows(terms, rows, where, columns)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(rows.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_row_affects_only_receivers_that_give_it_weight(poison):
    weights = neighbours(8, 8, 3)
    weights[:, 5] = 0
    weights[2, 5] = 0.5
    clean, broken = some_rows(8, 700), some_rows(8, 700)
    broken[5, 300] = poison
    for rows in (clean, broken):
        mix_rows([(weights, rows)], rows, torch.arange(8), all_of(rows))
    others = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    assert torch.equal(clean[others], broken[others])
    assert not broken[2, 300].isfinite()
    assert math.isnan(broken[2, 300]) or broken[2, 300] == poison
    assert broken[2].isfinite().sum() == 699


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixed_bits_do_not_depend_on_threads(dtype):
    start, weights = some_rows(30, 60_001, dtype=dtype), neighbours(30, 30, 6)

    def mixed():
        rows = start.clone()
        mix_rows([(weights, rows)], rows, torch.arange(30), all_of(rows))
        return rows

    one = on_threads(1, mixed)
    torch.testing.assert_close(one.double(), weights @ start.double(), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(one, on_threads(count, mixed)) for count in (2, 3))


def test_mixing_few_neighbours_does_not_depend_on_other_clients():
    rows, weights = some_rows(40, 3000), neighbours(40, 40, 5)
    together, alone = torch.zeros_like(rows), torch.zeros_like(rows)
    mix_rows([(weights, rows)], together, torch.arange(40), all_of(rows))
    for i in range(40):
        only = torch.zeros(2, 40, dtype=torch.float64)
        only[0] = weights[i]
        mix_rows([(only[:1], rows)], alone, torch.tensor([i]), all_of(rows))
    torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)


def test_mixing_ignores_torchs_reduced_precision():
    rows, weights = some_rows(12, 500), torch.rand(12, 12, generator=generator()).double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        mixed = torch.empty_like(rows)
        mix_rows([(weights, rows)], mixed, torch.arange(12), all_of(rows))
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(mixed.double(), weights @ rows.double(), rtol=1e-5, atol=1e-6)


# --- comparing --------------------------------------------------------------------------------------------------------
def naive(rows, pairs):
    """Plain cosines and distances, pair by pair, from the vectors themselves in extended precision."""
    x = rows.numpy().astype(np.longdouble)
    m = len(x)
    cosines, distances = np.full((2, m, m), np.nan)
    for i, j in zip(*np.nonzero(pairs.numpy()), strict=True):
        lengths = np.sqrt((x[i] * x[i]).sum()) * np.sqrt((x[j] * x[j]).sum())
        difference = x[i] - x[j]
        distances[i, j] = np.sqrt((difference * difference).sum())
        cosines[i, j] = (x[i] * x[j]).sum() / lengths if lengths != 0 else 0
    return torch.tensor(cosines), torch.tensor(distances)


def compare(rows, pairs=None, centre=False):
    pairs = torch.ones(len(rows), len(rows), dtype=torch.bool) if pairs is None else pairs
    return compare_row_pairs(lambda start, stop: rows[:, start:stop], len(rows), pairs, all_of(rows), centre)


@settings(max_examples=60)
@given(seeds, dtypes, st.integers(1, 8), st.sampled_from([0.0, 1.0, 1e4]), st.floats(1e-9, 1))
def test_distances_and_cosines_are_exact_whatever_lies_in_the_rows(seed, dtype, m, offset, spread):
    draws = generator(seed)
    rows = spread * some_rows(m, 29, seed, torch.float64) + offset
    rows *= torch.tensor([1.0, 1.0, 1e-12, 1e12, 0.0], dtype=torch.float64)[
        torch.randint(0, 5, (m, 1), generator=draws)
    ]
    rows = rows.to(dtype)[torch.randint(0, m, (m,), generator=draws)]  # some of them twice
    pairs = torch.rand(m, m, generator=draws) < 0.7
    found, (cosines, distances) = compare(rows, pairs), naive(rows, pairs)
    torch.testing.assert_close(found.distances, distances, rtol=1e-6, atol=0, equal_nan=True)
    torch.testing.assert_close(found.cosines, cosines, rtol=0, atol=1e-9, equal_nan=True)
    equal = (rows[:, None] == rows[None]).all(dim=2) & pairs
    assert not found.distances[equal].any()
    exactly = (rows != 0).any(dim=1).double()[:, None].expand(m, m)
    assert torch.equal(found.cosines[equal], exactly[equal])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("centre", [False, True])
def test_copies_among_many_rows_have_distance_zero(dtype, centre):
    rows = some_rows(37, 10_007, dtype=dtype) * 1e3 + 5
    rows[20:30] = rows[3]
    found = compare(rows, centre=centre)
    copies = torch.tensor([3, *range(20, 30)])
    assert not found.distances[copies][:, copies].any()
    assert torch.equal(found.cosines[copies][:, copies], torch.ones(11, 11, dtype=torch.float64))
    assert torch.equal(found.distances, found.distances.T)


def test_small_distances_between_near_copies_are_exact():
    start = some_rows(1, 3000, dtype=torch.float64)
    steps = some_rows(6, 3000, 1, torch.float64) * torch.tensor([[0.0], [0.0], [1e-6], [1e-6], [1e-12], [1e-12]])
    rows = start + steps
    found, (_, distances) = compare(rows), naive(rows, torch.ones(6, 6, dtype=torch.bool))
    torch.testing.assert_close(found.distances, distances, rtol=1e-6, atol=0)
    assert found.distances[0, 1] == 0


@pytest.mark.parametrize("centre", [False, True])
def test_one_enormous_vector_does_not_change_other_pairs(centre):
    rows = some_rows(6, 500)
    pairs = torch.ones(6, 6, dtype=torch.bool)
    pairs[:5, 5] = False
    alone = compare(rows[:5], pairs[:5, :5], centre)
    rows[5] *= 1e12
    found = compare(rows, pairs, centre)
    torch.testing.assert_close(found.cosines[:5, :5], alone.cosines, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.distances[:5, :5], alone.distances, rtol=1e-6, atol=0)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_vector_is_unknown_in_its_own_pairs_only(poison):
    rows = some_rows(6, 4000)
    whole = compare(rows)
    rows[2, 3999] = poison
    found = compare(rows)
    others = torch.tensor([0, 1, 3, 4, 5])
    for now, before in ((found.cosines, whole.cosines), (found.distances, whole.distances)):
        assert torch.equal(now[others][:, others], before[others][:, others])
        assert not now[2].isfinite().any()
        assert not now[:, 2].isfinite().any()


@pytest.mark.parametrize("centre", [False, True])
def test_compared_bits_do_not_depend_on_threads(monkeypatch, centre):
    monkeypatch.setattr(similarity, "MAX_WIDTH", 512)
    rows = some_rows(25, 40_001)
    rows[7] = rows[3] + 1e-7 * rows[4]
    one = on_threads(1, lambda: compare(rows, centre=centre))
    for count in (2, 3):
        other = on_threads(count, lambda: compare(rows, centre=centre))
        assert torch.equal(one.cosines, other.cosines)
        assert torch.equal(one.distances, other.distances)


def test_only_vectors_in_a_pair_are_multiplied(monkeypatch):
    sizes = []
    exact = similarity.product
    monkeypatch.setattr(similarity, "product", lambda a, b: (sizes.append(len(a)), exact(a, b))[1])
    rows, pairs = some_rows(50, 100), torch.zeros(50, 50, dtype=torch.bool)
    pairs[3, 40] = pairs[7, 3] = True
    found = compare(rows, pairs)
    assert sizes == [3]
    assert torch.equal(found.cosines.isnan(), ~pairs)
    torch.testing.assert_close(found.distances, naive(rows, pairs)[1], rtol=1e-12, atol=0, equal_nan=True)
    assert compare(rows, torch.zeros_like(pairs)).cosines.isnan().all()
