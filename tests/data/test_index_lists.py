"""Lists of indices in one tensor are read as the lists that they were made of."""

import numpy as np
import pytest
import torch

from dfl_lightning.data.splits.index_lists import IndexLists

PARTS = [np.array([3, 7, 9]), np.array([], dtype=np.int64), np.array([0]), np.array([], dtype=np.int64)]


def test_lists_are_returned_as_given():
    lists = IndexLists(PARTS)
    assert [part.tolist() for part in lists] == [part.tolist() for part in PARTS]
    assert [lists[place].tolist() for place in range(4)] == [part.tolist() for part in PARTS]
    assert [lists[place].tolist() for place in range(-4, 0)] == [part.tolist() for part in PARTS]
    assert [part.tolist() for part in lists[1:3]] == [[], [0]]
    assert lists.counts.tolist() == [3, 0, 1, 0]
    assert all(part.dtype == torch.long for part in lists)


@pytest.mark.parametrize("place", [4, -5])
def test_an_index_beyond_the_clients_raises(place):
    with pytest.raises(IndexError):
        IndexLists(PARTS)[place]


def test_no_clients_and_empty_clients_are_allowed():
    assert list(IndexLists([])) == []
    assert [len(part) for part in IndexLists([np.empty(0, dtype=np.int64)])] == [0]


@pytest.mark.parametrize("which", [[2, 0, 0], [1], [], [0, 1, 2, 3]])
def test_lists_of_some_clients_come_one_after_the_other(which):
    expected = [number for place in which for number in PARTS[place].tolist()]
    assert IndexLists(PARTS).together(torch.tensor(which, dtype=torch.long)).tolist() == expected
