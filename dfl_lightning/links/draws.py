"""Random numbers that belong to a link: they depend on its two ends and on what is drawn, on nothing else."""

from __future__ import annotations

from torch import Tensor

_STEP = -7046029254386353131  # 2^64 over the golden ratio, odd, as a signed number
_ROUNDS = ((30, -4658895280553007687), (27, -7723592293110705685))


def uniform(receivers: Tensor, others: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for each pair of whole numbers, float64, of their shape.

    It is splitmix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014) of a code
    of the pair: no number depends on another pair, nor on how many there are.

    Args:
        receivers: long, 0 to 2^31 - 1.
        others: a sender, or the number of a try; long, 0 to 2^32 - 1; of a shape that goes with that of `receivers`.
        seed: 63 bits.

    Examples:
        >>> import torch
        >>> draws = uniform(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), seed=7)
        >>> bool(torch.equal(draws[2], uniform(torch.tensor(1), torch.tensor(0), seed=7)))
        True
    """
    x = ((receivers << 32) + others) * _STEP + seed
    for shift, factor in _ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    return (_shifted(x ^ _shifted(x, 31), 11)).double() * 2.0**-53


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, as if without a sign."""
    return (x >> by) & (2 ** (64 - by) - 1)
