"""Comparison of two labellings of clients as partitions into groups."""

from __future__ import annotations

import torch
from torch import Tensor


def same_groups(first: Tensor, second: Tensor) -> bool:
    """Return True if two labellings divide the clients into the same groups, whatever the labels are.

    Args:
        first: labels of the clients, long [m].
        second: other labels of the same clients, long [m].

    Examples:
        >>> same_groups(torch.tensor([0, 0, 1]), torch.tensor([5, 5, 3]))
        True
    """
    return differing_pair(first, second) is None


def differing_pair(first: Tensor, second: Tensor) -> tuple[int, int] | None:
    """Find two clients, in ascending order, that share a group in only one of two labellings; None if there are none.

    Args:
        first: labels of the clients, long [m].
        second: other labels of the same clients, long [m].

    Examples:
        >>> differing_pair(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
        (0, 1)
    """
    pairs = [_separated_pair(one, other) for one, other in ((first, second), (second, first))]
    return min((pair for pair in pairs if pair is not None), default=None)


def _separated_pair(labels: Tensor, other: Tensor) -> tuple[int, int] | None:
    """Find the first client whose group's first member is in another group in the other labelling; return both."""
    groups, group_of = labels.unique(return_inverse=True)
    clients = torch.arange(len(labels))
    first_members = torch.full_like(groups, len(labels)).scatter_reduce_(0, group_of, clients, "amin")
    first_member = first_members[group_of]
    separated = torch.nonzero(other != other[first_member]).squeeze(1)
    return (int(first_member[separated[0]]), int(separated[0])) if len(separated) else None
