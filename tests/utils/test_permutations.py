"""Permutations by random words: each one, in any company, and where words agree."""

import numpy as np
import pytest

from dfl_lightning.utils.randomness import permutations as module
from dfl_lightning.utils.randomness.permutations import permutations
from tests.helpers.orders import word

LENGTHS = np.array([0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 0, 100, 2, 64, 300])
KEYS = np.array([word(3, place) for place in range(len(LENGTHS))], dtype=np.uint64)


def apart(flat, lengths):
    """Each permutation for itself."""
    return [part.tolist() for part in np.split(flat, lengths.cumsum()[:-1])]


def test_each_result_is_a_permutation_of_its_length():
    for part, length in zip(apart(permutations(KEYS, LENGTHS), LENGTHS), LENGTHS, strict=True):
        assert sorted(part) == list(range(length))


def test_each_permutation_sorts_the_random_words():
    for part, key in zip(apart(permutations(KEYS, LENGTHS), LENGTHS), KEYS.tolist(), strict=True):
        words = [word(key, place) for place in part]
        assert words == sorted(words)


@pytest.mark.parametrize("chosen", [[5], [16, 0, 3], [2, 14], list(range(16, -1, -1)), []], ids=str)
def test_permutations_do_not_depend_on_each_other(chosen):
    together = apart(permutations(KEYS, LENGTHS), LENGTHS)
    flat = permutations(KEYS[chosen], LENGTHS[chosen])
    assert flat.tolist() == [place for row in chosen for place in together[row]]


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64 - 1])
def test_positions_with_equal_words_keep_their_order(monkeypatch, bits):
    monkeypatch.setattr(module, "splitmix64", lambda places, keys: np.zeros_like(places + keys) + np.uint64(bits))
    for part, length in zip(apart(permutations(KEYS, LENGTHS), LENGTHS), LENGTHS, strict=True):
        assert part == list(range(length))


def test_padding_is_less_than_the_sum_of_lengths(monkeypatch):
    drawn = []

    def counted(places, keys):
        drawn.append(len(places) * len(keys))
        return word_table(places, keys)

    word_table = module.splitmix64
    monkeypatch.setattr(module, "splitmix64", counted)
    lengths = np.arange(1, 1000)
    permutations(np.arange(999, dtype=np.uint64), lengths)
    assert sum(drawn) < 2 * lengths.sum()
