"""FedeRiCo (arXiv 2210.06597): how useful another's model is, from its losses on the client's own data.

The paper is *Find Your Friends: Personalized Federated Learning with the Right Collaborators*. Row i is the receiver,
column j the sender.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["averaged_losses", "collaborator_weights"]


def averaged_losses(averages: Tensor, losses: Tensor, beta: float = 0.6) -> Tensor:
    """Exponential moving averages of losses: L = (1 - beta) L + beta loss.

    Args:
        averages: L so far, [n, n]; NaN where there has been no loss yet.
        losses: this round's, same shape; NaN = not evaluated, infinity = of a model that is not finite.
        beta: weight of this round's loss, in (0, 1].

    Returns:
        float64, same shape; the first loss is the first average, also the first after an infinite one.

    Example:
        >>> averaged_losses(torch.tensor([1.0, 1.0, torch.nan]), torch.tensor([2.0, torch.nan, 3.0]), beta=0.6)
        tensor([1.6000, 1.0000, 3.0000], dtype=torch.float64)
    """
    averages, losses = averages.double(), losses.double()
    moved = torch.where(averages.isfinite(), averages + beta * (losses - averages), losses)
    return torch.where(losses.isnan(), averages, moved)


def collaborator_weights(averages: Tensor) -> Tensor:
    """Posterior weights of all models on the client's own data, w_i = softmax(-L_i).

    Args:
        averages: L_ij, the receiver's own model on the diagonal, [n, n]; NaN = never seen, infinity is useless.

    Returns:
        float64 [n, n] in units of an average one of those seen: w_ij times their number; NaN stays NaN.

    Example:
        >>> collaborator_weights(torch.tensor([[0.5, 1.0, torch.nan, 2.0]]))
        tensor([[1.6396, 0.9945,    nan, 0.3659]], dtype=torch.float64)
    """
    seen = ~averages.isnan()
    logits = torch.where(seen, -averages.double(), -torch.inf)
    top = logits.amax(1, keepdim=True)
    shares = (logits - torch.where(top.isfinite(), top, 0.0)).exp()  # by hand: softmax of nothing but -inf is NaN
    total = shares.sum(1, keepdim=True)
    weights = shares * seen.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return torch.where(seen, weights, torch.nan)
