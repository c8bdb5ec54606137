"""Distances between all models of a receiver's neighbourhood: its own and those that it received.

Of models that were received, the distance is the same for all who received both, and is computed once; a receiver's own
model is the one that it trained, which may differ from what it sent.
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
"""Distances that are looked at at once, about."""

FAR = 1e300
"""In the place of squared distances that overflow: as far as can be, and still to be averaged."""


@dataclass(frozen=True)
class Neighbourhoods:
    """Who is near whom in each receiver's neighbourhood.

    Args:
        voters: receivers and the rows that they may mix, their own among them or not.
        own: distance of each voter to the receiver's own row, [E]; read only for receivers that are among their voters.
        pairs: each pair of different rows that some receiver received, the larger id as the receiver.
        apart: distance of each pair, [len(pairs)].
    """

    voters: Links
    own: Tensor
    pairs: Links
    apart: Tensor

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute receivers with equally many voters, some at a time.

        Returns:
            Places of their voters in the list, long [r, w], and squared distances between these, float64 [r, w, w].
        """
        for places in _places(self.voters):
            members, receivers = self.voters.senders[places], self.voters.receivers[places]
            smaller = torch.minimum(members[:, :, None], members[:, None, :])
            larger = torch.maximum(members[:, :, None], members[:, None, :])
            found = self.pairs.look_up(self.apart.double(), larger.flatten(), smaller.flatten(), fill=0.0).view(
                larger.shape
            )
            mine, own = members == receivers, self.own.double()[places]
            found = torch.where(mine[:, :, None], own[:, None, :], found)
            found = torch.where(mine[:, None, :], own[:, :, None], found)
            found.diagonal(dim1=1, dim2=2).zero_()
            yield places, found.square_().nan_to_num_(nan=FAR, posinf=FAR).clamp_(max=FAR)


def pairs_received(voters: Links) -> Links:
    """Compute pairs of different rows that some receiver received, each once, the larger id as the receiver.

    Where receivers have about as many pairs as there are at all, these are all pairs of what anybody received.

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
    return Links(among[larger], among[smaller], voters.nodes)


def _places(links: Links) -> Iterator[Tensor]:
    """Places in the list of the links of receivers with equally many senders, long [r, w]."""
    for count in links.count.unique().tolist():
        if count:
            receivers = torch.nonzero(links.count == count).squeeze(1)
            for some in receivers.split(max(1, BLOCK // count**2)):
                yield links.starts[some][:, None] + torch.arange(count)
