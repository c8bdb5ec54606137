"""Random permutations of any lengths, one for each key, all at once."""

from __future__ import annotations

import numpy as np

from dfl_lightning.utils.randomness.splitmix import splitmix64


def permutations(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return a random permutation of 0, ..., n - 1 for each key, one after the other, int64 [sum of n].

    Places are sorted by random words, and where words agree by themselves. A permutation depends on its key and its
    length alone, not on which others are drawn, nor on the processor.

    Args:
        keys: uint64 [k]; random ones, of `splitmix64` for example.
        lengths: n of each, int64 [k], 0 or more.

    Examples:
        >>> permutations(np.array([5, 3, 5], dtype=np.uint64), np.array([4, 2, 4])).tolist()
        [3, 1, 0, 2, 1, 0, 3, 1, 0, 2]
    """
    bits = np.frexp((lengths - 1).clip(0))[1]  # that a place of a permutation has
    found = np.empty(lengths.sum(), dtype=np.int64)
    for each in np.unique(bits):  # lengths of a group differ by less than 2, which bounds the padding
        group = bits == each
        found[group.repeat(lengths)] = _of_group(keys[group], lengths[group], int(each))
    return found


def _of_group(keys: np.ndarray, lengths: np.ndarray, bits: int) -> np.ndarray:
    """The permutations of one group.

    A place is kept in the last `bits` of its word, so that numbers are sorted and not pairs: numpy is three times as
    fast at that, and no two of them are equal.
    """
    places, last = np.arange(lengths.max(), dtype=np.uint64), np.uint64(2**bits - 1)
    words = splitmix64(places, keys[:, None])
    words &= ~last
    words |= places
    padding = places >= lengths[:, None].astype(np.uint64)
    words[padding] = np.iinfo(np.uint64).max  # follows all others
    words.sort(axis=1)
    words &= last
    return words.view(np.int64)[~padding]
