"""Random numbers for links, which depend on the seed and the two ends of the link only."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.utils.randomness.splitmix import splitmix64


def uniform(receivers: Tensor, others: Tensor, seed: int | Tensor) -> Tensor:
    """Draw a number in [0, 1) for each pair of integers, float64, in the shape to which both tensors broadcast.

    Each number consists of the 53 highest bits of `splitmix64` of the pair's code, so that it depends neither on other
    pairs nor on their number.

    Args:
        receivers: long, 0 to 2^31 - 1.
        others: the sender or the number of the attempt; long, 0 to 2^32 - 1; broadcast with `receivers`.
        seed: 63 bits; one for all, or one for each receiver, long [n].

    Examples:
        >>> draws = uniform(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), seed=7)
        >>> bool(torch.equal(draws[2], uniform(torch.tensor(1), torch.tensor(0), seed=7)))
        True
    """
    codes = (receivers << 32) + others
    seeds = seed if isinstance(seed, int) else seed[receivers].expand_as(codes).reshape(-1).numpy()
    words = splitmix64(codes.reshape(-1).numpy(), seeds) >> np.uint64(11)
    return torch.from_numpy(words.astype(np.float64) * 2.0**-53).view(codes.shape)
