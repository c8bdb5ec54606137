"""From selected senders to the rows that a receiver averages: votes, weights from votes, a server's step."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["count_votes", "exchange_weights", "metropolis_weights", "server_step", "uniform_weights"]


def count_votes(selected: Tensor, stand_in: Tensor, active: Tensor, include_self: Tensor, rows: int) -> Tensor:
    """How many votes each row has in each receiver's average.

    Every selected sender j has one vote, which goes to row `stand_in[i, j]`: its own, the row of a friend
    (FL-FDMS, arXiv 2205.13222, section 5.1) or one that was added to the models. A stand-in of -1 means the mean of the
    active ones among i's selected senders (FL-FDMS eq. 5): that vote is split evenly over them, and lost if there is
    none.

    Args:
        selected: the senders that receiver i would mix if all were active, bool [n, n].
        stand_in: the row that receiver i mixes for sender j, long [n, n], -1 to rows - 1; read only where `selected`.
        active: who takes part in this round, bool [n].
        include_self: the receivers that have a vote for their own row, bool [n].
        rows: how many rows there are to vote for, at least n.

    Returns:
        Votes >= 0, float64 [n, rows].

    Example:
        Client 2 has dropped out. Receiver 0 mixes its friend 1 instead; receiver 1 has only client 0 left.

        >>> selected = torch.tensor([[False, True, True], [True, False, True], [False, False, False]])
        >>> stand_in = torch.tensor([[0, 1, 1], [0, 1, -1], [0, 1, 2]])
        >>> active = torch.tensor([True, True, False])
        >>> count_votes(selected, stand_in, active, include_self=active, rows=3)
        tensor([[1., 2., 0.],
                [2., 1., 0.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    n = len(selected)
    if rows < n:
        raise ValueError(f"{rows} rows cannot hold a row for each of {n} clients")
    receivers, senders = torch.nonzero(selected, as_tuple=True)
    stand_ins = stand_in[receivers, senders]
    if ((stand_ins < -1) | (stand_ins >= rows)).any():
        raise ValueError(f"a stand-in must be -1 or one of the {rows} rows")
    known = stand_ins >= 0
    votes = torch.zeros(n, rows, dtype=torch.float64, device=selected.device)
    one = torch.ones((), dtype=torch.float64, device=votes.device)
    votes.index_put_((receivers[known], stand_ins[known]), one, accumulate=True)

    silent = torch.bincount(receivers[~known], minlength=n)
    missed = torch.nonzero(silent).squeeze(1)
    if len(missed):
        present = (selected[missed] & active[None, :]).double()
        votes[missed, :n] += silent[missed, None] * present / present.sum(1, keepdim=True).clamp(min=1)
    votes.diagonal().add_(include_self.double())
    return votes


def uniform_weights(votes: Tensor) -> Tensor:
    """Weights in proportion to the votes: a plain average.

    Args:
        votes: votes >= 0, [r, P].

    Returns:
        float64 [r, P]; rows sum to 1; rows without votes stay zero.

    Example:
        >>> uniform_weights(torch.tensor([[1, 2, 1], [0, 0, 0]]))
        tensor([[0.2500, 0.5000, 0.2500],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    votes = votes.double()
    total = votes.sum(1, keepdim=True)
    return votes / torch.where(total > 0, total, torch.ones_like(total))


def metropolis_weights(votes: Tensor, owners: Tensor | None = None) -> Tensor:
    """Metropolis-Hastings weights: w_ij = 1 / (1 + max(d_i, d_j)), and what is left for oneself.

    Where selection is mutual the matrix is symmetric and doubly stochastic: averaging keeps the mean of all models
    (Xiao, Boyd and Lall, *A scheme for robust distributed sensor fusion based on average consensus*, IPSN 2005).

    Args:
        votes: votes >= 0, [n, P]; d_i is the number of i's votes for others, its vote for itself not counted.
        owners: whose model or update each row is, long [P]; default: row j is that of node j.

    Returns:
        float64 [n, P]; rows sum to 1, the receiver's own share on the diagonal; rows without votes stay zero.

    Example:
        A path of three clients: the one in the middle has two neighbours.

        >>> metropolis_weights(torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]]))
        tensor([[0.6667, 0.3333, 0.0000],
                [0.3333, 0.3333, 0.3333],
                [0.0000, 0.3333, 0.6667]], dtype=torch.float64)
    """
    votes = votes.double()
    others = votes.clone()
    others.diagonal().zero_()
    degrees = others.sum(1)
    owners = torch.arange(votes.shape[1]) if owners is None else owners
    weights = others / (1 + torch.maximum(degrees[:, None], degrees[owners][None, :]))
    weights.diagonal().copy_(torch.where(votes.sum(1) > 0, 1 - weights.sum(1), 0.0))
    return weights


def exchange_weights(weights: Tensor) -> Tensor:
    """What a mixing matrix moves between pairs, W - I where W is symmetric.

    Args:
        weights: row-stochastic weights, [n, n]; of a pair with two different weights the smaller one counts.

    Returns:
        float64 [n, n], symmetric; rows and columns sum to 0, so that what is exchanged by it keeps its sum.

    Example:
        >>> exchange_weights(torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]))
        tensor([[-0.2500,  0.2500,  0.0000],
                [ 0.2500, -0.2500,  0.0000],
                [ 0.0000,  0.0000,  0.0000]], dtype=torch.float64)
    """
    moved = torch.minimum(weights, weights.T).double()
    moved.diagonal().zero_()
    return moved - torch.diag(moved.sum(1))


def server_step(weights: Tensor, servers: slice | Tensor, step_size: float) -> Tensor:
    """Weights of servers that go only a part of the way to the average: w + eta * (average - w).

    With a step size eta the global update of FL-FDMS (arXiv 2205.13222, eq. 4) is a weight 1 - eta on the server's own
    row and eta times the weights of the average.

    Args:
        weights: row-stochastic weights, [n, P], P >= n.
        servers: which rows are servers: a slice, or bool [n].
        step_size: eta > 0; 1 takes the average itself.

    Returns:
        A new float64 [n, P]; the other rows, and servers with a zero row (no active sender), are as they were.

    Example:
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> server_step(weights, slice(2, 3), step_size=0.1)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000],
                [0.0500, 0.0500, 0.9000]], dtype=torch.float64)
    """
    weights = weights.double()
    moving = torch.zeros(len(weights), dtype=torch.bool, device=weights.device)
    moving[servers] = True
    moving &= (weights != 0).any(1)
    stepped = step_size * weights
    stepped.diagonal().add_(1 - step_size)
    return torch.where(moving[:, None], stepped, weights)
