"""Distances between all models of a receiver's neighbourhood: its own and those that it received.

The distance of two received models is the same for all their receivers, and is computed once. A receiver's own model is
the one that it trained, which may differ from the one that it sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.functional.systems.fdms_receivers import count_pairs, distinct_pairs
from dfl_lightning.links import Links

__all__ = ["Neighbourhoods", "pairs_received"]

BLOCK = 2**22
"""About how many distances are processed at a time."""

FAR = 1e300
"""Value of squared distances that overflow: larger than all others, but finite, so that it can be averaged."""


@dataclass(frozen=True)
class Neighbourhoods:
    """The distances between all models of each receiver's neighbourhood.

    Args:
        voters: receivers and the rows that they may mix, with or without their own.
        own: distance of each voter to the receiver's own row, [E]; read only for receivers that are among their voters.
        pairs: the pairs of different rows with a common receiver, as links with the larger id as receiver.
        apart: distance of each pair, [len(pairs)].
        names: the id of each voter's row in `pairs`, long [E]; default: its sender.
    """

    voters: Links
    own: Tensor
    pairs: Links
    apart: Tensor
    names: Tensor | None = None

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the squared distances of some receivers at a time, all with the same number w of voters.

        Returns:
            Indices of their voters in the list, long [r, w], and squared distances between these, float64 [r, w, w].
        """
        names = self.voters.senders if self.names is None else self.names
        for entries in _equally_long(self.voters):
            members, receivers, called = self.voters.senders[entries], self.voters.receivers[entries], names[entries]
            smaller = torch.minimum(called[:, :, None], called[:, None, :])
            larger = torch.maximum(called[:, :, None], called[:, None, :])
            distances = self.pairs.look_up(self.apart.double(), larger.flatten(), smaller.flatten(), fill=0.0)
            distances = distances.view(larger.shape)
            mine, own = members == receivers, self.own.double()[entries]
            distances = torch.where(mine[:, :, None], own[:, None, :], distances)
            distances = torch.where(mine[:, None, :], own[:, :, None], distances)
            distances.diagonal(dim1=1, dim2=2).zero_()
            yield entries, distances.square_().nan_to_num_(nan=FAR, posinf=FAR).clamp_(max=FAR)


def pairs_received(voters: Links) -> Links:
    """Return the pairs of different rows that have a common receiver, as links with the larger id as receiver.

    If receivers together have at least as many pairs as there are among all received rows, all of these are returned.

    Args:
        voters: receivers and the rows that they may mix; a receiver's own row is not received.

    Examples:
        >>> voters = Links.of(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 2, 3, 3, 4]), nodes=6)
        >>> pairs = pairs_received(voters)
        >>> list(zip(pairs.receivers.tolist(), pairs.senders.tolist()))
        [(3, 2), (4, 3)]
    """
    received = voters.keep(voters.receivers != voters.senders)
    among = received.senders.unique()
    if count_pairs(received.count) < len(among) * (len(among) - 1) // 2:
        return distinct_pairs(received)
    larger, smaller = torch.tril_indices(len(among), len(among), offset=-1)
    return Links(among[larger], among[smaller], voters.rows)


def _equally_long(links: Links) -> Iterator[Tensor]:
    """Yield indices of the links of some receivers that have the same number w of senders, long [r, w]."""
    for count in links.count.unique().tolist():
        if count:
            receivers = torch.nonzero(links.count == count).squeeze(1)
            for some in receivers.split(max(1, BLOCK // count**2)):
                yield links.starts[some][:, None] + torch.arange(count)
