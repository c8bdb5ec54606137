"""Counter-based randomness: a draw is named by what it is for, never by what was drawn before it.

Every random draw of a simulation comes from `stream(seed, purpose, ...)`, or is hashed from its `stream_seed` where
many are drawn at once (`dfl_lightning.utils.randomness.splitmix`). No global generator is used, so results do not
depend on the order in which clients are processed, nor on threads, processes or resumed runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["numpy_stream", "numpy_streams", "stream", "stream_seed"]

_128 = 2**128 - 1


def stream_seed(seed: int, purpose: str, *words: int) -> int:
    """Return a 63-bit seed for the draw that these words name (BLAKE2b of the words).

    Args:
        seed: the run's seed.
        purpose: what is drawn, for example `"batches"`.
        words: further coordinates, by convention round, client, step.

    Examples:
        >>> stream_seed(0, "batches", 3, 1) == stream_seed(0, "batches", 3, 1)
        True
        >>> stream_seed(0, "batches", 3, 1) == stream_seed(0, "batches", 1, 3)
        False
    """
    key = f"{int(seed)}/{purpose}/" + "/".join(str(int(word)) for word in words)
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, purpose: str, *words: int) -> torch.Generator:
    """Return a CPU generator for one named draw; see `stream_seed`.

    Args:
        seed: of the run.
        purpose: name of the draw.
        words: whole numbers that complete the name: round, client, ….
    """
    return torch.Generator().manual_seed(stream_seed(seed, purpose, *words))


def numpy_stream(seed: int, purpose: str, *words: int) -> np.random.Generator:
    """Return the same for numpy, for distributions that torch lacks (Dirichlet, permutations of index lists).

    Args:
        seed: of the run.
        purpose: name of the draw.
        words: whole numbers that complete the name.
    """
    return np.random.default_rng(stream_seed(seed, purpose, *words))


def numpy_streams(seed: int, purpose: str, number: int) -> Iterator[np.random.Generator]:
    """Return `numpy_stream(seed, purpose, i)` for i = 0, ..., number - 1 one by one, in a quarter of the time.

    Each is the same object as the one before it, which must have drawn what it will draw.

    Args:
        seed: of the run.
        purpose: name of the draw.
        number: of the streams.
    """
    seeds = np.array([stream_seed(seed, purpose, word) for word in range(number)], dtype=np.uint64)
    bits = np.random.PCG64()
    generator = np.random.Generator(bits)
    for state in pcg64_states(seeds):
        bits.state = state
        yield generator


def pcg64_states(seeds: np.ndarray) -> Iterator[Any]:
    """Yield what `numpy.random.PCG64(seed).state` is for each seed: numpy's `SeedSequence`, for all of them at once.

    Args:
        seeds: uint64 [n].
    """
    zeros = np.zeros(len(seeds), dtype=np.uint32)
    low, high = (part.astype(np.uint32) for part in (seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)))
    constants = _constants(0x43B0D7E5, 0x931E8875)
    pool = [_hashed(words, constants) for words in (low, high, zeros, zeros)]
    for source in range(4):
        for place in (place for place in range(4) if place != source):
            mixed: np.ndarray = pool[place] * np.uint32(0xCA01F9DD) - _hashed(pool[source], constants) * np.uint32(
                0x4973F715
            )
            pool[place] = mixed ^ (mixed >> np.uint32(16))
    constants = _constants(0x8B51F9DD, 0x58F38DED)
    found = [_hashed(pool[place % 4], constants).tolist() for place in range(8)]
    for a, b, c, d, e, f, g, h in zip(*found, strict=True):
        start, increment = (b << 96 | a << 64 | d << 32 | c), (f << 96 | e << 64 | h << 32 | g) << 1 & _128 | 1
        state = ((start + increment) * 0x2360ED051FC65DA44385DF649FCCF645 + increment) & _128
        yield {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }


def _constants(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """A constant of the hash and the next one, again and again."""
    while True:
        following = first * factor & 0xFFFFFFFF
        yield np.uint32(first), np.uint32(following)
        first = following


def _hashed(words: np.ndarray, constants: Iterator[tuple[np.uint32, np.uint32]]) -> np.ndarray:
    before, after = next(constants)
    found = (words ^ before) * after
    return found ^ (found >> np.uint32(16))
