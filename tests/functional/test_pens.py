import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import more_often_than_expected


def chosen(counts, sent=None, rule="expected", sampled=10, top=2, rounds=20):
    """Select for one receiver of len(counts) + 1 clients, with all others reachable in every round."""
    n = len(counts) + 1
    looks = torch.tensor(sent if sent is not None else [0] * (n - 1))
    expected = torch.full((n - 1,), top * rounds / (n - 1), dtype=torch.float64)
    settings = {"nodes": n, "sampled": sampled, "top": top, "rounds": rounds}
    return more_often_than_expected(torch.tensor(counts), expected, looks, rule, **settings).tolist()


def test_counts_of_gossipys_example_choose_the_same_client():
    assert chosen([5, 1, 0, 3], [10, 10, 10, 15], "sent") == [True, False, False, False]


def test_every_source_has_its_threshold():
    """n = 5, top 2, sampled 3, 10 rounds: 5; 4; 4; ceil(10) = 10."""
    counts, settings = [4, 5, 6, 11], {"sampled": 3, "top": 2, "rounds": 10}
    assert chosen(counts, rule="expected", **settings) == [False, False, True, True]
    assert chosen(counts, rule="all_clients", **settings) == [False, True, True, True]
    assert chosen(counts, rule="one_less", **settings) == [False, True, True, True]
    assert chosen(counts, rule="panm", **settings) == [False, False, False, True]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 40),
    st.data(),
)
def test_thresholds_agree_with_integer_arithmetic(counts, top, more, rounds, data):
    n, sampled = len(counts) + 1, top + more
    sent = data.draw(st.lists(st.integers(0, 40), min_size=n - 1, max_size=n - 1))
    exact = {
        "expected": [c * (n - 1) > top * rounds for c in counts],
        "all_clients": [c * n > top * rounds for c in counts],
        "one_less": [(c + 1) * (n - 1) > top * rounds for c in counts],
        "sent": [c * sampled > s * top for c, s in zip(counts, sent, strict=True)],
        "panm": [c > math.ceil(rounds * (sampled + top) / n) for c in counts],
    }
    for rule, answer in exact.items():
        assert chosen(counts, sent, rule, sampled, top, rounds) == answer


@pytest.mark.parametrize("rounds", [3, 7, 30])
def test_rounding_of_summed_thirds_does_not_lower_the_threshold(rounds):
    counts = torch.full((12,), rounds)
    summed = sum(torch.full((12,), 1 / 3, dtype=torch.float64) for _ in range(3 * rounds))
    settings = {"nodes": 4, "sampled": 1, "top": 1, "rounds": 3 * rounds}
    found = more_often_than_expected(counts, summed, counts, "expected", **settings)
    assert not found.any()
