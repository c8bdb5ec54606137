"""SplitMix64, which computes a random word for each of many counters."""

from __future__ import annotations

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, odd
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST = np.uint64(31)


def splitmix64(counters: np.ndarray, seeds: np.ndarray | int) -> np.ndarray:
    """Compute the random words of generators at their counters, uint64.

    It is the generator of Steele, Lea and Flood, *Fast splittable pseudorandom number generators* (OOPSLA 2014), whose
    state is its seed plus a multiple of an odd number. No word depends on the computation of others. All words of one
    generator are different.

    Args:
        counters: integers from 0 to 2^64 - 1, int64 or uint64; at least one dimension.
        seeds: 64-bit seeds, int64 or uint64, which are broadcast with `counters`.

    Examples:
        >>> splitmix64(np.array([1, 2]), 1234567).tolist()
        [6457827717110365317, 3203168211198807973]
    """
    words: np.ndarray = counters.astype(np.uint64) * _STEP + np.asarray(seeds).astype(np.uint64)
    for shift, factor in _ROUNDS:
        words ^= words >> shift
        words *= factor
    words ^= words >> _LAST
    return words
