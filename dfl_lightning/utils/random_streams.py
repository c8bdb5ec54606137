"""Counter-based randomness: a draw is named by what it is for, never by what was drawn before it.

Every random draw of a simulation comes from `stream(seed, purpose, ...)`. No global generator is used, so results
do not depend on the order in which clients are processed, nor on threads, processes or resumed runs.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

__all__ = ["numpy_stream", "stream", "stream_seed"]


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
