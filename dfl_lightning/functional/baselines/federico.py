"""FedeRiCo (arXiv 2210.06597): the usefulness of others' models, from their losses on the client's own data.

The paper is *Find Your Friends: Personalized Federated Learning with the Right Collaborators*. Its round (algorithm 1),
and the code of each step:

1. a client asks M others for their models phi_j: with probability epsilon       (`FedeRiCo`, on_propose)
   random ones, else those with the largest weights
2. L_ij: the running mean of phi_j's losses on client i's data                   (`averaged_losses`; `beta`)
3. E-step: w_ij = softmax(-L_ij)                                                 (`collaborator_weights`)
4. M-step: phi_j moves by the sum over i of w_ij times i's update of phi_j       (`FedeRiCoStep`, on_mix)
5. prediction: the mixture of the models' outputs with weights w_ij              (the prediction `Mixture`)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["averaged_losses", "collaborator_weights"]


def averaged_losses(averages: Tensor, losses: Tensor, beta: float = 0.6) -> Tensor:
    """Compute exponential moving averages of losses: L = (1 - beta) L + beta loss.

    Args:
        averages: L so far, any shape; NaN before the first loss.
        losses: losses of this round, same shape; NaN = not evaluated, infinity for a model that is not finite.
        beta: weight of this round's loss, in (0, 1].

    Returns:
        float64, same shape; the first loss is the first average, and so is the first loss after an infinite one.

    Examples:
        >>> averaged_losses(torch.tensor([1.0, 1.0, torch.nan]), torch.tensor([2.0, torch.nan, 3.0]), beta=0.6)
        tensor([1.6000, 1.0000, 3.0000], dtype=torch.float64)
    """
    averages, losses = averages.double(), losses.double()
    moved = torch.where(averages.isfinite(), averages + beta * (losses - averages), losses)
    return torch.where(losses.isnan(), averages, moved)


def collaborator_weights(averages: Tensor, links: Links) -> Tensor:
    """Compute posterior weights of the models evaluated on the client's own data, w_i = softmax(-L_i).

    Args:
        averages: L_ij, [E]; NaN = never evaluated; an infinite one gets the weight 0.
        links: links to the models that each receiver has evaluated, its own among them.

    Returns:
        w_ij times the number of evaluated models, float64 [E], so that 1 is an average model; NaN stays NaN.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 4, dtype=torch.bool))  # one receiver, four senders
        >>> collaborator_weights(torch.tensor([0.5, 1.0, torch.nan, 2.0]), links)
        tensor([1.6396, 0.9945,    nan, 0.3659], dtype=torch.float64)
    """
    unknown = averages.isnan()
    shares = links.softmax(-averages, times=averages.isfinite())
    return (shares * links.sum(~unknown)[links.receivers]).masked_fill(unknown, torch.nan)
