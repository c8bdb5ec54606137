"""Distances in groups by Gram matrices: equal to scipy's, with digits where they are small, in any order of work."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform
from threads import threads

from dfl_lightning.bank.comparing import grouped_similarity, similarity
from dfl_lightning.bank.comparing.similarity import distances_in_groups
from dfl_lightning.bank.layout import Columns
from dfl_lightning.functional import pairs_received
from dfl_lightning.links import Links

M, P = 60, 700


def drawn_groups(seed, sizes=(0, 1, 2, 5, 6), nodes=M):
    random = np.random.default_rng(seed)
    sets = [random.choice(M, random.choice(sizes), replace=False) for _ in range(nodes)]
    receivers = torch.tensor([node for node, of in enumerate(sets) for _ in of])
    return Links.of(receivers, torch.tensor(np.concatenate(sets)).long(), nodes, M)


def received(groups):
    return groups.keep(groups.receivers != groups.senders)


@pytest.fixture
def by_groups(monkeypatch):
    """Let nothing but the Gram matrices compute, and the pairs that these have lost digits of."""
    monkeypatch.setattr(similarity, "FEW", 1.0)
    monkeypatch.setattr(grouped_similarity, "MOST_ENTRIES", 10**9)
    looked_again = []
    few = similarity.compare_few
    monkeypatch.setattr(similarity, "compare_few", lambda *args: looked_again.append(len(args[2])) or few(*args))
    monkeypatch.setattr(similarity, "compare_rows", None)
    return looked_again


def distances(rows, groups, **options):
    pairs = pairs_received(groups)
    found = distances_in_groups(
        lambda start, stop: rows[:, start:stop],
        len(rows),
        pairs,
        received(groups),
        Columns([(0, rows.shape[1])]),
        **options,
    )
    return pairs, found


@pytest.mark.parametrize("seed", range(3))
def test_distances_are_those_of_scipy(seed, by_groups):
    rows = torch.randn(M, P, generator=torch.Generator().manual_seed(seed))
    pairs, found = distances(rows, drawn_groups(seed))
    expected = squareform(pdist(rows.double().numpy()))
    assert len(pairs) > 100
    np.testing.assert_allclose(found.numpy(), expected[pairs.receivers, pairs.senders], rtol=1e-12)
    assert by_groups == []


def test_near_rows_keep_their_digits(by_groups):
    """Rows 0 to 29 are nearly equal, 30 and 31 are equal, and the others are far apart."""
    rows = torch.randn(M, P, generator=torch.Generator().manual_seed(3))
    rows[:30] = rows[0] + 1e-6 * rows[:30]
    rows[31] = rows[30]
    groups = drawn_groups(4, sizes=(12,))
    pairs, found = distances(rows, groups)
    expected = squareform(pdist(rows.double().numpy()))[pairs.receivers, pairs.senders]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    equal = (pairs.receivers == 31) & (pairs.senders == 30)
    assert equal.any()
    assert bool((found[equal] == 0).all())
    assert by_groups
    assert by_groups[0] < len(pairs)


def test_broken_rows_break_their_own_pairs_only(by_groups):
    rows = torch.randn(M, P, generator=torch.Generator().manual_seed(5))
    whole = distances(rows, drawn_groups(6))[1]
    rows[7, 3], rows[8, 5] = torch.nan, torch.inf
    pairs, found = distances(rows, drawn_groups(6))
    broken = sum((pairs.receivers == one) | (pairs.senders == one) for one in (7, 8)).bool()
    assert broken.any()
    assert bool(found[broken].isnan().all())
    assert torch.equal(found[~broken], whole[~broken])


def test_bits_do_not_depend_on_threads(by_groups, monkeypatch):
    rows = torch.randn(M, P, generator=torch.Generator().manual_seed(7))
    monkeypatch.setattr(grouped_similarity, "PIECE", 2**12)
    groups = drawn_groups(8, sizes=(3, 9))
    found = []
    for number in (1, 2, 4):
        with threads(number):
            found.append(distances(rows, groups)[1])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_many_pairs_or_many_common_groups_are_compared_otherwise():
    pairs = pairs_received(drawn_groups(9))
    assert grouped_similarity.gram_is_cheaper(pairs, drawn_groups(9))
    same = Links(torch.arange(20).repeat_interleave(4), torch.arange(4).repeat(20), 20)
    assert not grouped_similarity.gram_is_cheaper(pairs_received(same), same)
    rows = torch.randn(20, P, generator=torch.Generator().manual_seed(1))
    pairs, found = distances(rows, same)
    np.testing.assert_allclose(found.numpy(), squareform(pdist(rows.double()))[pairs.receivers, pairs.senders], 1e-6)
