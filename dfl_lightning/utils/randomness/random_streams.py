"""Counter-based random numbers: a draw depends on a seed, its purpose and its coordinates, never on earlier draws.

All random draws of a simulation come from `stream(seed, purpose, ...)`, or, if there are many, are hashed from its
`stream_seed` (`dfl_lightning.utils.randomness.splitmix`). No global generator is used, so that results do not depend on
the order in which clients are processed, nor on threads, processes or resumed runs.
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
    """Return a 63-bit seed for a draw, the BLAKE2b hash of its seed, purpose and coordinates.

    Args:
        seed: the run's seed.
        purpose: name of the draws, for example `"batches"`.
        words: coordinates of the draw, by convention round, client, step.

    Examples:
        >>> stream_seed(0, "batches", 3, 1) == stream_seed(0, "batches", 3, 1)
        True
        >>> stream_seed(0, "batches", 3, 1) == stream_seed(0, "batches", 1, 3)
        False
    """
    key = f"{int(seed)}/{purpose}/" + "/".join(str(int(word)) for word in words)
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, purpose: str, *words: int) -> torch.Generator:
    """Return torch's CPU generator for one draw; see `stream_seed`.

    Args:
        seed: the run's seed.
        purpose: name of the draws, for example `"batches"`.
        words: coordinates of the draw, by convention round, client, step.
    """
    return torch.Generator().manual_seed(stream_seed(seed, purpose, *words))


def numpy_stream(seed: int, purpose: str, *words: int) -> np.random.Generator:
    """Return numpy's generator for one draw, for distributions that torch lacks (Dirichlet, permutations of lists).

    Args:
        seed: the run's seed.
        purpose: name of the draws, for example `"split"`.
        words: coordinates of the draw, by convention round, client, step.
    """
    return np.random.default_rng(stream_seed(seed, purpose, *words))


def numpy_streams(seed: int, purpose: str, number: int) -> Iterator[np.random.Generator]:
    """Yield `numpy_stream(seed, purpose, i)` for i = 0, ..., number - 1 in a quarter of the time.

    It is the same object each time, so that all draws from a stream must be made before the next one.

    Args:
        seed: the run's seed.
        purpose: name of the draws.
        number: number of streams.
    """
    seeds = np.array([stream_seed(seed, purpose, word) for word in range(number)], dtype=np.uint64)
    bits = np.random.PCG64()
    generator = np.random.Generator(bits)
    for state in pcg64_states(seeds):
        bits.state = state
        yield generator


def pcg64_states(seeds: np.ndarray) -> Iterator[Any]:
    """Yield `numpy.random.PCG64(seed).state` for each seed, by numpy's `SeedSequence` computed for all together.

    Args:
        seeds: uint64 [n].
    """
    zeros = np.zeros(len(seeds), dtype=np.uint32)
    low, high = (part.astype(np.uint32) for part in (seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)))
    constants = _constants(0x43B0D7E5, 0x931E8875)
    pool = [_hashed(words, constants) for words in (low, high, zeros, zeros)]
    for source in range(4):
        for target in (target for target in range(4) if target != source):
            hashed = _hashed(pool[source], constants)
            mixed: np.ndarray = pool[target] * np.uint32(0xCA01F9DD) - hashed * np.uint32(0x4973F715)
            pool[target] = mixed ^ (mixed >> np.uint32(16))
    constants = _constants(0x8B51F9DD, 0x58F38DED)
    words = [_hashed(pool[index % 4], constants).tolist() for index in range(8)]
    for a, b, c, d, e, f, g, h in zip(*words, strict=True):
        start, increment = (b << 96 | a << 64 | d << 32 | c), (f << 96 | e << 64 | h << 32 | g) << 1 & _128 | 1
        state = ((start + increment) * 0x2360ED051FC65DA44385DF649FCCF645 + increment) & _128
        yield {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }


def _constants(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """Yield pairs of a constant of the hash and the next one, without end."""
    while True:
        following = first * factor & 0xFFFFFFFF
        yield np.uint32(first), np.uint32(following)
        first = following


def _hashed(words: np.ndarray, constants: Iterator[tuple[np.uint32, np.uint32]]) -> np.ndarray:
    before, after = next(constants)
    mixed = (words ^ before) * after
    return mixed ^ (mixed >> np.uint32(16))
