"""Random numbers that belong to a link: they depend on its two ends and on what is drawn, on nothing else."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.utils.randomness.splitmix import splitmix64


def uniform(receivers: Tensor, others: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for each pair of whole numbers, float64, of their shape.

    It is made of the 53 first bits of `splitmix64` of a code of the pair: no number depends on another pair, nor on how
    many there are.

    Args:
        receivers: long, 0 to 2^31 - 1.
        others: a sender, or the number of a try; long, 0 to 2^32 - 1; of a shape that goes with that of `receivers`.
        seed: 63 bits.

    Examples:
        >>> draws = uniform(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), seed=7)
        >>> bool(torch.equal(draws[2], uniform(torch.tensor(1), torch.tensor(0), seed=7)))
        True
    """
    codes = (receivers << 32) + others
    words = splitmix64(codes.reshape(-1).numpy(), seed) >> np.uint64(11)
    return torch.from_numpy(words.astype(np.float64) * 2.0**-53).view(codes.shape)
