"""From selected senders to the rows that a receiver averages: votes, weights from votes, a server's step.

Votes and weights have an entry for each of a list of voters: pairs (receiver, row), where rows are first the nodes and
then other rows that may be mixed. Weights are the entries of a round's mixing matrix W, new model_i = sum_j W_ij row_j;
an aggregation computes them from the votes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = [
    "count_votes",
    "exchange_weights",
    "metropolis_weights",
    "push_sum_weights",
    "server_step",
    "uniform_weights",
]


def count_votes(
    selected: Links, substitute: Tensor, active: Tensor, include_self: Tensor, rows: int, receivers: Tensor
) -> tuple[Links, Tensor]:
    """Count the votes of each row in each receiver's average.

    Each selected sender has one vote, which goes to the row `substitute` of its link: its own, the row of a friend
    (FL-FDMS, arXiv 2205.13222, section 5.1) or a stored row. A substitute of -1 is the mean of the active ones among
    the receiver's selected senders (FL-FDMS eq. 5): that vote is split evenly over them, and lost if there are none.

    Args:
        selected: links to the senders that each receiver would mix if all were active.
        substitute: the row that the receiver mixes for the sender of a link, long [E], -1 to rows - 1.
        active: nodes that take part in this round, bool [n].
        include_self: receivers that have a vote for their own row, bool [n].
        rows: P, the number of rows, at least n.
        receivers: nodes whose own row is listed even without a vote, bool [n].

    Returns:
        The list of voters, pairs of n nodes and P rows, and their votes, float64: above 0, or 0 for own rows without a
        vote.

    Raises:
        ValueError: a substitute is out of range, or there are fewer rows than nodes.

    Examples:
        Client 2 has dropped out. Receiver 0 mixes its friend 1 instead; receiver 1 has only client 0 left.

        >>> selected = Links.of(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 0, 2]), nodes=3)
        >>> active = torch.tensor([True, True, False])
        >>> voters, votes = count_votes(selected, torch.tensor([1, 1, 0, -1]), active, active, 3, active)
        >>> voters.dense(votes, 0)
        tensor([[1., 2., 0.],
                [2., 1., 0.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    n = selected.nodes
    if rows < n:
        raise ValueError(f"{rows} rows cannot hold a row for each of {n} clients")
    if ((substitute < -1) | (substitute >= rows)).any():
        raise ValueError(f"a substitute must be -1 or one of the {rows} rows")
    has_substitute = substitute >= 0
    absent = selected.sum(~has_substitute)
    present = selected.between(receivers=absent > 0, senders=active)
    split = absent.double() / present.count.clamp(min=1)
    own = torch.nonzero(receivers | include_self).squeeze(1)
    parts = (
        (
            selected.receivers[has_substitute],
            substitute[has_substitute],
            torch.ones(int(has_substitute.sum()), dtype=torch.float64),
        ),
        (present.receivers, present.senders, split[present.receivers]),
        (own, own, include_self[own].double()),
    )
    receiving, voted_for, numbers = (torch.cat(several) for several in zip(*parts, strict=True))
    codes, entries = (receiving * rows + voted_for).unique(return_inverse=True)
    votes = torch.zeros(len(codes), dtype=torch.float64).index_add_(0, entries, numbers)
    return Links.coded(codes, n, rows), votes


def push_sum_weights(votes: Tensor, voters: Links) -> Tensor:
    """Compute the share of each sender that a receiver gets, in proportion to the votes: P_ij = v_ij / sum_k v_kj.

    Args:
        votes: votes >= 0, [E].
        voters: receivers and the rows that they may mix.

    Returns:
        float64 [E]; they sum to 1 for each sender, or are 0 without votes.

    Examples:
        Client 0 is received by 1, and only client 1 receives from 1.

        >>> voters = Links.of(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), nodes=2)
        >>> push_sum_weights(torch.ones(3), voters)
        tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    votes = votes.double()
    given = torch.zeros(voters.rows, dtype=torch.float64).index_add_(0, voters.senders, votes)
    return votes / torch.where(given > 0, given, 1.0)[voters.senders]


def uniform_weights(votes: Tensor, voters: Links) -> Tensor:
    """Compute weights in proportion to the votes, a plain average: W_ij = v_ij / sum_k v_ik.

    Args:
        votes: votes >= 0, [E].
        voters: receivers and the rows that they may mix.

    Returns:
        float64 [E]; they sum to 1 for each receiver, or are 0 without votes.

    Examples:
        >>> voters = Links.from_mask(torch.tensor([[True, True, True], [True, False, False]]))
        >>> uniform_weights(torch.tensor([1, 2, 1, 0]), voters)
        tensor([0.2500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    votes = votes.double()
    total = voters.sum(votes)
    return votes / torch.where(total > 0, total, 1.0)[voters.receivers]


def metropolis_weights(
    votes: Tensor, voters: Links, owners: Tensor | None = None, idle_degrees: Tensor | None = None
) -> Tensor:
    """Compute Metropolis-Hastings weights: W_ij = 1 / (1 + max(d_i, d_j)), and W_ii = 1 - sum_j W_ij.

    Where selection is mutual the weights are symmetric and doubly stochastic: averaging keeps the mean of all models
    (Xiao, Boyd and Lall, *A scheme for robust distributed sensor fusion based on average consensus*, IPSN 2005).

    Args:
        votes: votes >= 0, [E]; d_i is the number of i's votes for others, without its vote for itself.
        voters: receivers and the rows that they may mix; among these the own row of every receiver with votes.
        owners: the node that owns the model or update of each row, long [P]; default: node j owns row j.
        idle_degrees: d_j of nodes without votes, which mix at another time, [n]; default: 0.

    Returns:
        float64 [E]; they sum to 1 for each receiver, and are 0 for a receiver without votes.

    Raises:
        ValueError: a receiver with votes lacks its own row.

    Examples:
        A path of three clients: the one in the middle has two neighbours.

        >>> voters = Links.from_mask(torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]]) > 0)
        >>> voters.dense(metropolis_weights(torch.ones(7), voters), 0)
        tensor([[0.6667, 0.3333, 0.0000],
                [0.3333, 0.3333, 0.3333],
                [0.0000, 0.3333, 0.6667]], dtype=torch.float64)
    """
    votes = votes.double()
    own = _own_rows(voters, voters.any(votes > 0))
    others = votes.masked_fill(own, 0)
    degrees = voters.sum(others)
    if idle_degrees is not None:
        degrees = torch.where(voters.any(votes > 0), degrees, idle_degrees.to(degrees.dtype))
    sending = voters.senders if owners is None else owners[voters.senders]
    weights = others / (1 + torch.maximum(degrees[voters.receivers], degrees[sending]))
    left = torch.where(voters.sum(votes) > 0, 1 - voters.sum(weights), 0.0)
    return torch.where(own, left[voters.receivers], weights)


def exchange_weights(weights: Tensor, voters: Links) -> Tensor:
    """Compute weights of an exchange that keeps sums over clients: W - I if W is symmetric.

    Args:
        weights: row-stochastic weights, [E]; for a pair with two different weights the smaller one is used.
        voters: receivers and the nodes that they mix; among these the own row of every receiver with weights.

    Returns:
        float64 [E], the same for both directions of a pair; they sum to 0 for each receiver and for each sender, so
        that numbers exchanged with these weights keep their sum.

    Raises:
        ValueError: a receiver with weights lacks its own row.

    Examples:
        >>> matrix = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
        >>> voters = Links.from_mask(matrix > 0)
        >>> voters.dense(exchange_weights(matrix[matrix > 0], voters), 0)
        tensor([[-0.2500,  0.2500,  0.0000],
                [ 0.2500, -0.2500,  0.0000],
                [ 0.0000,  0.0000,  0.0000]], dtype=torch.float64)
    """
    weights = weights.double()
    own = _own_rows(voters, voters.any(weights != 0))
    back = voters.places(voters.senders, voters.receivers)
    moved = torch.where((back >= 0) & ~own, torch.minimum(weights, weights[back]), 0)
    return torch.where(own, 0.0 - voters.sum(moved)[voters.receivers], moved)


def server_step(weights: Tensor, voters: Links, servers: Tensor, step_size: float) -> Tensor:
    """Compute weights of servers that take a step towards the average: w + eta * (average - w).

    For a step of size eta (FL-FDMS, arXiv 2205.13222, eq. 4) the server's own row has the weight 1 - eta, and the
    weights of the average are multiplied by eta.

    Args:
        weights: row-stochastic weights, [E].
        voters: receivers and the rows that they may mix; among these the own row of every server with weights.
        servers: nodes that are servers, bool [n].
        step_size: eta > 0; 1 takes the average itself.

    Returns:
        A new float64 [E]; the weights of other receivers, and of servers without weights, are unchanged.

    Raises:
        ValueError: a server with weights lacks its own row.

    Examples:
        >>> matrix = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> voters = Links.from_mask(torch.ones(3, 3, dtype=torch.bool))
        >>> servers = torch.tensor([False, False, True])
        >>> voters.dense(server_step(matrix.flatten(), voters, servers, step_size=0.1))
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000],
                [0.0500, 0.0500, 0.9000]], dtype=torch.float64)
    """
    weights = weights.double()
    moving = servers & voters.any(weights != 0)
    own = _own_rows(voters, moving)
    stepped = step_size * weights + (1 - step_size) * own.double()
    return torch.where(moving[voters.receivers], stepped, weights)


def _own_rows(voters: Links, needed: Tensor) -> Tensor:
    """Mark the voters that are a receiver's own row, bool [E].

    Raises:
        ValueError: one of the receivers `needed`, bool [n], does not have its own row among its voters.
    """
    own = voters.receivers == voters.senders
    if bool((needed & ~voters.any(own)).any()):
        raise ValueError("a receiver lacks its own row among those that it mixes")
    return own
