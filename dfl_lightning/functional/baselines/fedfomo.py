"""FedFomo (arXiv 2012.08565): the gain of each received model over the client's own, per distance.

The paper's round (section 3), and the code of each step:

1. a client asks for M models, each the best left by affinity P, or with probability epsilon a
   random one                                                                                  (`epsilon_greedy`)
2. w_j, received, on its validation data: `(L(w0) - L(w_j)) / ||w_j - w0||`, eq. 4              (`first_order_gain`)
3. weights: the positive ones over their sum                                                   (`FirstOrder`)
4. w = w0 + sum of weights (w_j - w0), eq. 3; w0 where none is positive                        (`FirstOrder`, on_mix)
5. P_j = P_j + its signed weight                                                               (`affinity_step`)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["affinity_step", "epsilon_greedy", "first_order_gain"]

LEAST = 1e-9
"""Least divisor of signed weights, for sums close to 0."""

WORST = 1e100
"""Loss that replaces an infinite loss of the client's own model, so that gains over it are finite."""

ROUNDING = 16
"""Rounding error of a loss, in multiples of the machine epsilon of the models' precision."""


def epsilon_greedy(
    preferred: Tensor, drawn: Tensor, explores: Sequence[Tensor], links: Links, limits: Tensor
) -> Tensor:
    """Choose senders one after the other: the best that is left, or a random one if the receiver explores.

    Args:
        preferred: score of each sender, higher is better, [E]; finite, without ties.
        drawn: random numbers, [E]; a receiver that explores takes the highest that is left.
        explores: the receivers that explore, bool [n], for the first choice, the second and so on.
        links: the senders to choose from.
        limits: number of senders that each receiver may choose, long [n], at most the number of choices.

    Returns:
        Mask of the chosen links, bool [E].

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> best, drawn = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> epsilon_greedy(best, drawn, [torch.tensor([False]), torch.tensor([True])], links, torch.tensor([2]))
        tensor([ True, False,  True])
    """
    taken = torch.zeros(len(links), dtype=torch.bool)
    for choice, exploring in enumerate(explores):
        order = torch.where(exploring[links.receivers], drawn, preferred).masked_fill(taken, torch.nan)
        taken |= links.top(order, (limits > choice).long())
    return taken


def first_order_gain(
    before: Tensor, after: Tensor, distances: Tensor, precision: torch.dtype = torch.float64
) -> Tensor:
    """Compute the gain of a model over the client's own per distance (FedFomo eq. 4): (L(w0) - L(w)) / ||w - w0||.

    Args:
        before: L(w0), loss of the receiver's model from before the round, any shape; infinity counts as 1e100.
        after: L(w), loss of the received model on the same data, same shape; NaN = unknown.
        distances: Euclidean distance of the two models, same shape.
        precision: dtype of the models. A difference of losses within its rounding error counts as 0: otherwise the gain
            of two almost equal models would be the quotient of two rounding errors, which can have any size.

    Returns:
        float64, same shape; NaN for an unknown loss, minus infinity for an infinite one, 0 for equal models.

    Examples:
        >>> after, distances = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([2.0, 4.0, 0.0])
        >>> first_order_gain(torch.ones(3), after, distances)
        tensor([ 0.2500, -0.2500,  0.0000], dtype=torch.float64)
    """
    before, after = before.double().clamp(max=WORST), after.double()
    gain = before - after
    rounding = ROUNDING * torch.finfo(precision).eps * torch.maximum(before.abs(), after.abs())
    gain = torch.where((gain.abs() <= rounding) & after.isfinite(), 0.0, gain)
    return torch.where(distances == 0, torch.where(gain.isnan(), gain, 0.0), gain / distances.double())


def affinity_step(gains: Tensor, links: Links) -> Tensor:
    """Compute a round's change of affinities: gains divided by the absolute value of their sum, float64 [E].

    Args:
        gains: gains of the models that each receiver evaluated, [E]; a gain that is not finite counts as 0.
        links: links to these models.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> affinity_step(torch.tensor([0.5, -0.25, torch.nan]), links)
        tensor([ 2., -1.,  0.], dtype=torch.float64)
    """
    finite = gains.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return finite / links.sum(finite).abs().clamp(min=LEAST)[links.receivers]
