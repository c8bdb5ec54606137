"""IFCA (arXiv 2006.04088, *An Efficient Framework for Clustered Federated Learning*): estimating cluster identities.

A round of algorithm 1 (model averaging), and the code of each step:

1. the servers send their k models, which start different, to active clients     (`IFCA`, on_propose)
2. each client's cluster: the model with the lowest loss on its training data    (`best_server`)
3. it trains that model and sends it back                                        (`IFCA`, on_select)
4. each server continues with the average of the clients that chose it           (the aggregation, on_mix)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["best_server"]


def best_server(losses: Tensor) -> Tensor:
    """Return the server whose model has the lowest loss (IFCA algorithm 1, line 6).

    Args:
        losses: loss of each server's model on each client's training data, [J, c]; NaN counts as infinity.

    Returns:
        Index of the server for each client, long [J]; the first one among equals.

    Examples:
        >>> best_server(torch.tensor([[0.5, 0.2, 0.2], [torch.nan, 3.0, 4.0]]))
        tensor([1, 1])
    """
    comparable = losses.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return comparable.argsort(dim=1, stable=True)[:, 0]
