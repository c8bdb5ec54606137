"""Similarities of few pairs of many rows, against a matrix of all pairs."""

import pytest
import torch
from pairs import compare_row_pairs
from threads import threads

from dfl_lightning.bank.comparing import similarity, sparse_similarity
from dfl_lightning.bank.layout import Columns

COLUMNS = Columns([(0, 30), (40, 90)])


def federation(m=60, width=100):
    """Rows around a common part; copies, a zero row and one that is not finite among them; three senders a receiver."""
    generator = torch.Generator().manual_seed(0)
    rows = 0.1 * torch.randn(m, width, generator=generator) + torch.randn(width, generator=generator)
    rows[4], rows[7], rows[9] = rows[3], rows[0], 0
    rows[6, 2] = torch.nan
    pairs = torch.zeros(m, m, dtype=torch.bool)
    pairs[torch.arange(m).repeat_interleave(3), torch.randint(0, m, (3 * m,), generator=generator)] = True
    pairs[3, 4] = pairs[4, 3] = pairs[0, 7] = pairs[10, 6] = pairs[11, 9] = pairs[12, 12] = True
    pairs[8] = pairs[:, 8] = False  # compares itself with no other client
    return rows, pairs


@pytest.fixture
def compare(monkeypatch):
    """Compare pair by pair (`few`) or by a matrix."""

    def run(rows, pairs, few, centre, columns=COLUMNS):
        monkeypatch.setattr(similarity, "FEW", float(few))
        return compare_row_pairs(lambda start, stop: rows[:, start:stop], len(rows), pairs, columns, centre)

    return run


@pytest.mark.parametrize("centre", [False, True])
def test_comparing_pair_by_pair_equals_comparing_by_a_matrix(compare, centre):
    rows, pairs = federation()
    few, whole = (compare(rows, pairs, few, centre) for few in (True, False))
    torch.testing.assert_close(few.cosines, whole.cosines, rtol=0, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(few.distances, whole.distances, rtol=1e-9, atol=0, equal_nan=True)
    assert few.distances[3, 4] == 0
    assert few.cosines[3, 4] == 1
    assert few.cosines[10].isnan().all() == centre  # who sees a row that is not finite has no centre
    assert torch.equal(few.cosines.isnan() | few.distances.isnan(), few.cosines.isnan())


def test_centred_cosines_of_receivers_by_hand(compare):
    rows, pairs = federation()
    found = compare(rows, pairs, True, True).cosines
    vectors = torch.cat([rows[:, :30], rows[:, 40:90]], dim=1).double()
    for i in (0, 3, 20, 59):
        members = torch.nonzero(pairs[i] | (torch.arange(len(rows)) == i)).squeeze(1)
        centred = vectors - vectors[members].mean(0)
        for j in torch.nonzero(pairs[i]).flatten().tolist():
            expected = torch.cosine_similarity(centred[i], centred[j], dim=0)
            assert float(found[i, j]) == pytest.approx(float(expected), abs=1e-9, nan_ok=True)


def test_identical_rows_have_centred_cosine_0(compare):
    rows, pairs = federation()
    same = torch.ones_like(rows) * rows[20]
    assert compare(same, pairs, True, True).cosines[pairs].eq(0).all()
    assert compare(same, pairs, True, False).cosines[pairs].eq(1).all()


@pytest.mark.parametrize("centre", [False, True])
def test_pairs_do_not_depend_on_threads_pieces_or_column_widths(compare, centre, monkeypatch):
    rows, pairs = federation()
    with threads(1):
        one = compare(rows, pairs, True, centre)
    with threads(3):
        other = compare(rows, pairs, True, centre)
    assert torch.equal(one.cosines.nan_to_num(9), other.cosines.nan_to_num(9))
    assert torch.equal(one.distances.nan_to_num(9), other.distances.nan_to_num(9))
    monkeypatch.setattr(sparse_similarity, "PIECE", 1024)  # a receiver or a few of them at a time
    pieces = compare(rows, pairs, True, centre)
    assert torch.equal(one.cosines.nan_to_num(9), pieces.cosines.nan_to_num(9))
    assert torch.equal(one.distances.nan_to_num(9), pieces.distances.nan_to_num(9))
    for name in ("LEAST_WIDTH", "MAX_WIDTH"):
        monkeypatch.setattr(sparse_similarity, name, 16)
    cut = compare(rows, pairs, True, centre)
    assert not torch.equal(one.distances.nan_to_num(9), cut.distances.nan_to_num(9))  # sums in another order
    torch.testing.assert_close(cut.cosines, one.cosines, rtol=0, atol=1e-13, equal_nan=True)


def test_without_pairs_all_cosines_are_nan(compare):
    rows, pairs = federation()
    assert compare(rows, torch.zeros_like(pairs), True, True).cosines.isnan().all()


def test_many_pairs_are_compared_by_a_matrix(monkeypatch):
    def refused(*args):
        raise AssertionError("pair by pair")

    monkeypatch.setattr(similarity, "compare_few", refused)
    rows, pairs = federation()  # 5 % of all pairs
    compare_row_pairs(lambda start, stop: rows[:, start:stop], len(rows), pairs, COLUMNS, True)
    few = torch.zeros_like(pairs)
    few[torch.arange(30), torch.arange(30, 60)] = True
    with pytest.raises(AssertionError, match="pair by pair"):
        compare_row_pairs(lambda start, stop: rows[:, start:stop], len(rows), few, COLUMNS, True)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_comparing_does_not_change_the_rows(compare, few, centre, dtype):
    rows, pairs = federation()
    rows, pairs[8, 9] = rows.to(dtype), True  # All rows take part. If only some did, they would be copied in any case.
    before = rows.clone()
    compare(rows, pairs, few, centre)
    assert torch.equal(rows.nan_to_num(9), before.nan_to_num(9))
