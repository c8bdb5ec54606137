"""IFCA (arXiv 2006.04088, *An Efficient Framework for Clustered Federated Learning*): estimating cluster identities."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["best_server"]


def best_server(losses: Tensor) -> Tensor:
    """The server whose model has the lowest loss (IFCA algorithm 1, line 6).

    Args:
        losses: loss of each server's model on each client's training data, [J, c]; NaN and infinity are worst.

    Returns:
        long [J]; among equal ones the first.

    Examples:
        >>> best_server(torch.tensor([[0.5, 0.2, 0.2], [torch.nan, 3.0, 4.0]]))
        tensor([1, 1])
    """
    known = losses.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return known.argsort(dim=1, stable=True)[:, 0]
