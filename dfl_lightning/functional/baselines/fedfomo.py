"""FedFomo (arXiv 2012.08565): how much each model received would improve one's own, per distance.

The paper's round (section 3), and what does it here:

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
"""Signed weights whose sum is closer to 0 than this are divided by this."""

WORST = 1e100
"""Stands for an infinite loss of one's own model, so that of several models each has a share of the gains."""

ROUNDING = 16
"""A loss is known to so many of the smallest relative differences of the models' precision."""


def epsilon_greedy(
    preferred: Tensor, drawn: Tensor, explores: Sequence[Tensor], links: Links, limits: Tensor
) -> Tensor:
    """Choose senders one after the other: the best that is left, or where a receiver explores a random one.

    Args:
        preferred: the higher, the better the sender, [E]; finite, without ties.
        drawn: random numbers, [E]; exploring takes the highest that is left.
        explores: for the first choice, the second and so on, which receivers explore, bool [n].
        links: to choose from.
        limits: how many senders each receiver may choose, long [n], at most the number of choices.

    Returns:
        bool [E].

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> best, drawn = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.1, 0.2, 0.3])
        >>> epsilon_greedy(best, drawn, [torch.tensor([False]), torch.tensor([True])], links, torch.tensor([2]))
        tensor([ True, False,  True])
    """
    taken = torch.zeros(len(links), dtype=torch.bool)
    for place, exploring in enumerate(explores):
        order = torch.where(exploring[links.receivers], drawn, preferred).masked_fill(taken, torch.nan)
        taken |= links.top(order, (limits > place).long())
    return taken


def first_order_gain(
    before: Tensor, after: Tensor, distances: Tensor, precision: torch.dtype = torch.float64
) -> Tensor:
    """Compute the gain of a model over one's own per distance (FedFomo eq. 4): (L(w0) - L(w)) / ||w - w0||.

    Args:
        before: loss of the receiver's model from before the round, of any shape; an infinite one counts as 1e100.
        after: loss of the model received on the same data, same shape; NaN = not known, infinite = useless.
        distances: Euclidean distance of the two models, same shape.
        precision: of the models. A difference of losses within its rounding is 0: two models that are equal but for
            their last digits would otherwise be worth the quotient of two rounding errors, a number of any size.

    Returns:
        float64, same shape; NaN where a loss is not known, minus infinity for a useless model, 0 for an equal one.

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
    """Compute what a round adds to affinities: gains over the absolute value of their sum, float64 [E].

    Args:
        gains: of the models that each receiver looked at, [E]; one that is not finite counts as 0.
        links: whom each receiver looked at.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> affinity_step(torch.tensor([0.5, -0.25, torch.nan]), links)
        tensor([ 2., -1.,  0.], dtype=torch.float64)
    """
    known = gains.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return known / links.sum(known).abs().clamp(min=LEAST)[links.receivers]
