"""The orders of local training's samples by ordinary whole numbers, one after the other."""

import torch

from dfl_lightning.utils.randomness.random_streams import stream_seed

MASK = 2**64 - 1


def word(seed: int, counter: int) -> int:
    """SplitMix64, from its paper: a state of `seed` plus a multiple of the golden ratio, and Stafford's mixer 13."""
    z = (seed + counter * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def drawn_order(samples: int, seed: int, purpose: str, round: int, owner: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch takes a client's samples, int64 [samples]."""
    key = word(stream_seed(seed, f"{purpose} batches", round), owner * 2**32 + epoch)
    unit = 2 ** max(samples - 1, 0).bit_length()  # words are compared by what is left of a place's bits
    return torch.tensor(sorted(range(samples), key=lambda at: (word(key, at) // unit, at)), dtype=torch.long)
