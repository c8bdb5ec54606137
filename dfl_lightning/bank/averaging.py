"""Averages of buffers: combinations of rows on the columns of running statistics.

A running mean, a running variance or a counter describes the data that a model has seen. The difference of two
variances, a fraction of one or a multiple of one describes nothing, and may be negative. So the bank turns every
combination of rows into an average on these columns, whatever the combination is on the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights

NEAR_ONE = 1e-6
"""How far from 1 the weights of an average may sum: those in float32 do not sum to 1 exactly."""


def averages(terms: Sequence[tuple[Weights, str]], nodes: Tensor, num_clients: int) -> Sequence[tuple[Weights, str]]:
    """Replace the weights of each sum by those of an average, for the buffer columns.

    A sum whose weights are 0 or more and sum to 1 is an average already. In any other sum

    - weights below 0 do not count: a difference keeps its first part, the statistics of the model that was sent;
    - the node's own row of `models` does not count if the weights sum to more than 1: updates are added to it;
    - the weights that are left are divided by their sum.

    A server's own row does not count next to other rows: a server has trained nothing, so its weight is a step size.
    If no weight is left, all rows count by the absolute values of their weights.

    Args:
        terms: summands, each the weights of rows in w sums and the name of the row set.
        nodes: long [w], the nodes that get the sums.
        num_clients: m; nodes from m on are servers.

    Returns:
        The summands; `terms` itself if all of its sums are averages.

    Examples:
        The server, node 2, goes one and a half times the way from its own model to the average of the clients.

        >>> step = Weights.of_dense(torch.tensor([[0.75, 0.75, -0.5]], dtype=torch.float64))
        >>> ((weights, _),) = averages([(step, "trained")], nodes=torch.tensor([2]), num_clients=2)
        >>> weights.dense()
        tensor([[0.5000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    names, size = list(dict.fromkeys(name for _, name in terms)), max(w.shape[1] for w, _ in terms)
    codes = torch.cat([(w.jobs * len(names) + names.index(name)) * size + w.rows for w, name in terms]).cpu()
    codes, index = codes.unique(return_inverse=True)  # a row that occurs twice counts by the sum of its weights
    shares = torch.zeros(len(codes), dtype=torch.float64)
    shares.index_add_(0, index, torch.cat([w.shares for w, _ in terms]).double().cpu())
    jobs, which, rows = codes // (len(names) * size), codes // size % len(names), codes % size

    def total(values: Tensor) -> Tensor:
        """Return at each entry the total of the values of its sum, float64 [entries]."""
        return torch.zeros(len(nodes), dtype=torch.float64).index_add_(0, jobs, values.double())[jobs]

    own_row = rows == nodes.cpu()[jobs]
    base = own_row & torch.tensor([name == "models" for name in names])[which]
    of_round = torch.tensor([name in ("models", "trained", "sent") for name in names])[which]
    step = own_row & of_round & (rows >= num_clients)
    positive = shares.clamp(min=0)
    kept = positive.masked_fill(base & (total(shares) > 1 + NEAR_ONE), 0).masked_fill(step, 0)
    if torch.equal(kept, shares) and bool(((total(shares) - 1).abs() <= NEAR_ONE).all()):
        return terms
    for left in (positive, shares.abs()):
        kept = torch.where(total(kept) > 0, kept, left)
    kept = kept / total(kept)
    summands = []
    for number, name in enumerate(names):
        here = (which == number) & (kept > 0)
        summands.append((Weights(jobs[here], rows[here], kept[here], (len(nodes), size)), name))
    return summands
