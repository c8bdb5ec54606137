"""Random permutations of any lengths, one for each key, computed together."""

from __future__ import annotations

import numpy as np

from dfl_lightning.utils.randomness.splitmix import splitmix64


def permutations(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Draw a random permutation of 0, ..., n - 1 for each key; return all one after the other, int64 [sum of n].

    Numbers are sorted by random words, and those with equal words by their values. A permutation depends only on its
    key and its length, neither on other permutations nor on the processor.

    Args:
        keys: random keys, for example from `splitmix64`, uint64 [k].
        lengths: length n of each permutation, int64 [k], 0 or more.

    Examples:
        >>> permutations(np.array([5, 3, 5], dtype=np.uint64), np.array([4, 2, 4])).tolist()
        [3, 1, 0, 2, 1, 0, 3, 1, 0, 2]
    """
    bits = np.frexp((lengths - 1).clip(0))[1]  # number of bits of the largest number in each permutation
    numbers = np.empty(lengths.sum(), dtype=np.int64)
    for width in np.unique(bits):  # lengths in a group differ by a factor below 2, which bounds the padding
        group = bits == width
        numbers[group.repeat(lengths)] = _of_group(keys[group], lengths[group], int(width))
    return numbers


def _of_group(keys: np.ndarray, lengths: np.ndarray, bits: int) -> np.ndarray:
    """Draw the permutations of one group.

    Each number is stored in the last `bits` bits of its random word, so that integers are sorted instead of pairs. In
    numpy this is three times as fast, and no two of the integers are equal.
    """
    numbers, last = np.arange(lengths.max(), dtype=np.uint64), np.uint64(2**bits - 1)
    words = splitmix64(numbers, keys[:, None])
    words &= ~last
    words |= numbers
    padding = numbers >= lengths[:, None].astype(np.uint64)
    words[padding] = np.iinfo(np.uint64).max  # sorted behind all others
    words.sort(axis=1)
    words &= last
    return words.view(np.int64)[~padding]
