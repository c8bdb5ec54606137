"""Draws that are named by what they are for."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.utils.randomness.random_streams import numpy_stream, numpy_streams, pcg64_states, stream, stream_seed

whole = st.integers(-(2**40), 2**40)


def test_a_stream_never_changes_between_versions():
    assert stream_seed(0, "batches", 3, 1) == 3857532704859168239
    assert torch.rand(2, generator=stream(7, "gossip", 1, 2)).tolist() == pytest.approx([0.1957, 0.4168], abs=1e-4)
    assert numpy_stream(7, "gossip", 1, 2).random(2) == pytest.approx([0.02244, 0.10760], abs=1e-4)


@given(st.tuples(whole, st.sampled_from(["a", "b"]), st.lists(whole, max_size=3).map(tuple)), st.data())
def test_other_words_give_another_seed(key, data):
    other = data.draw(st.tuples(whole, st.sampled_from(["a", "b"]), st.lists(whole, max_size=3).map(tuple)))
    seeds = [stream_seed(seed, purpose, *words) for seed, purpose, words in (key, other)]
    assert (seeds[0] == seeds[1]) == (key == other)
    assert 0 <= seeds[0] < 2**63


def test_adjacent_words_are_not_joined():
    keys = [(1, "a", 1, 11), (1, "a", 11, 1), (11, "a", 1), (1, "a", 1, 1, 1), (1, "a", 111), (1, "a")]
    assert len({stream_seed(*key) for key in keys}) == len(keys)


def test_an_integer_of_any_type_is_the_same_word():
    assert (
        stream_seed(3, "x", 5)
        == stream_seed(np.int64(3), "x", torch.tensor(5))
        == stream_seed(True + 2, "x", np.uint8(5))
    )


def test_draws_of_neighbouring_words_are_independent():
    rows = torch.stack(
        [torch.rand(200, generator=stream(0, "x", a, b)) for a, b in itertools.product(range(20), range(10))]
    )
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlations.abs().max() < 0.35  # 20,000 pairs of 200 draws: five standard deviations
    assert abs(float(correlations.mean())) < 2e-3
    assert abs(float(rows.mean()) - 0.5) < 0.01


def test_many_streams_equal_streams_made_one_by_one():
    for client, rng in enumerate(numpy_streams(5, "x", 50)):
        if client % 3:  # whatever the one before has left, a half-used word for example
            rng.integers(0, 9, dtype=np.int32)
        expected = numpy_stream(5, "x", client)
        if client % 3:
            expected.integers(0, 9, dtype=np.int32)
        assert rng.permutation(24).tolist() == expected.permutation(24).tolist()


def test_states_are_those_of_numpy():
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, *np.random.default_rng(0).integers(0, 2**63, 500).tolist()]
    for seed, state in zip(seeds, pcg64_states(np.array(seeds, dtype=np.uint64)), strict=True):
        assert np.random.PCG64(seed).state == state


def test_global_generators_are_not_used():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.rand(3, generator=stream(0, "x"))
    numpy_stream(0, "x").random(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
