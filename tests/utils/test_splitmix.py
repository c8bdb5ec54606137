"""SplitMix64 against its published words and against ordinary whole numbers."""

import numpy as np
import pytest

from dfl_lightning.utils.randomness.splitmix import splitmix64
from tests.helpers.orders import word


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),  # as in xoshiro's and the JDK's tests
        (
            1234567,
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821],
        ),
    ],
)
def test_the_first_words_are_the_published_ones(seed, words):
    assert splitmix64(np.arange(1, len(words) + 1), seed).tolist() == words


@pytest.mark.filterwarnings("error")
def test_words_equal_pythons_integers_for_all_signs():
    counters = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
    for seed in (0, 5, 2**63 - 1, 2**63, 2**64 - 1):
        expected = [word(seed, counter) for counter in counters]
        assert splitmix64(np.array(counters, dtype=np.uint64), seed).tolist() == expected
        assert splitmix64(np.array(counters, dtype=np.uint64).view(np.int64), seed).tolist() == expected


def test_seeds_and_counters_may_be_arrays():
    found = splitmix64(np.arange(3), np.array([[7], [2**64 - 9]], dtype=np.uint64))
    assert found.tolist() == [[word(seed, counter) for counter in range(3)] for seed in (7, 2**64 - 9)]


def test_arguments_are_not_changed():
    counters, seeds = np.arange(4, dtype=np.uint64), np.arange(4, dtype=np.uint64)
    splitmix64(counters, seeds)
    assert counters.tolist() == seeds.tolist() == [0, 1, 2, 3]
