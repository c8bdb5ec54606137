"""Whether two labellings of clients mean the same groups."""

from __future__ import annotations

import torch
from torch import Tensor


def same_groups(first: Tensor, second: Tensor) -> bool:
    """Whether two labellings, long [m] each, put the same clients together, whatever the labels are.

    Args:
        first: labels.
        second: of the same clients.

    Examples:
        >>> same_groups(torch.tensor([0, 0, 1]), torch.tensor([5, 5, 3]))
        True
    """
    return differing_pair(first, second) is None


def differing_pair(first: Tensor, second: Tensor) -> tuple[int, int] | None:
    """Two clients that share a group in one of two labellings only, in ascending order; None where there are none.

    Args:
        first: labels, long [m].
        second: of the same clients.

    Examples:
        >>> differing_pair(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
        (0, 1)
    """
    found = [_apart(inner, outer) for inner, outer in ((first, second), (second, first))]
    return min((pair for pair in found if pair is not None), default=None)


def _apart(together: Tensor, other: Tensor) -> tuple[int, int] | None:
    """The first client that shares a group with an earlier one which is elsewhere in the other labelling."""
    groups, which = together.unique(return_inverse=True)
    clients = torch.arange(len(together))
    leaders = torch.full_like(groups, len(together)).scatter_reduce_(0, which, clients, "amin")
    leader = leaders[which]
    wrong = torch.nonzero(other != other[leader]).squeeze(1)
    return (int(leader[wrong[0]]), int(wrong[0])) if len(wrong) else None
