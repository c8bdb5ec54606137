"""Links within groups, pairs the other way round, and lists that are not written down."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.links import AllPairs, LinkMemory, Links


def drawn(seed):
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4))
def test_links_within_groups_agree_with_a_matrix(seed, n, number):
    draws = drawn(seed)
    groups = 10 * torch.randint(0, number, (n,), generator=draws)
    receives, sends = torch.rand(2, n, generator=draws) < 0.7
    pairs = AllPairs(receives, sends)
    mask = receives[:, None] & sends & ~torch.eye(n, dtype=torch.bool) & (groups[:, None] == groups)
    for links in (pairs, Links(pairs.receivers, pairs.senders, n)):
        found = links.within_groups(groups)
        assert torch.equal(found.mask, mask)
        assert (found.codes.diff() > 0).all()
        assert torch.equal(links.count_alike(groups), mask.sum(1))


def test_rows_beyond_the_nodes_are_in_no_list():
    pairs = AllPairs.of_nodes(3)
    voters = Links.of(torch.tensor([0, 0, 1, 2]), torch.tensor([1, 4, 3, 5]), nodes=3, rows=6)
    for links in (pairs, Links.complete(3)):
        assert links.find(voters).tolist() == [0, -1, -1, -1]


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_transposed_pairs_agree_with_a_matrix(seed, n):
    draws = drawn(seed)
    known, asked = torch.rand(2, n, n, generator=draws) < 0.5
    values = torch.rand(n, n, generator=draws, dtype=torch.float64)
    memory = LinkMemory.empty(n)
    memory.write(Links.from_mask(known), values[known])
    links = Links.from_mask(asked)
    expected = torch.where(known, values, -1).T[asked]
    assert torch.equal(memory.read_back(links, -1), expected)


def test_nan_is_not_written_into_memory():
    memory, links = LinkMemory.empty(3), Links.complete(3)
    memory.write(links, torch.arange(6.0))
    memory.write_known(links, torch.tensor([torch.nan, 7, torch.nan, torch.nan, 8, torch.nan]))
    assert memory.values.tolist() == [0, 7, 2, 3, 8, 5]


def test_lists_between_different_nodes_have_no_union():
    with pytest.raises(ValueError, match="3 x 3 and 3 x 6"):
        Links.complete(3).union(Links.empty(3, rows=6))


def test_the_union_with_an_empty_list_is_the_other_list():
    pairs = AllPairs.of_nodes(200_000)
    assert Links.empty(200_000).union(pairs) is pairs
    assert pairs.union(Links.empty(200_000)) is pairs
