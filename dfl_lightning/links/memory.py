"""A memory of one number for each link, from round to round."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links.links import Links


class LinkMemory:
    """A number for each link that was ever written; links that are missing from later graphs keep theirs.

    Args:
        links: links that have a number.
        values: numbers of these links, float64 or long [E].

    Examples:
        >>> memory = LinkMemory.empty(3)
        >>> memory.write(Links.complete(3), torch.arange(6.0))
        >>> memory.read(Links.of(torch.tensor([2, 0]), torch.tensor([1, 0]), nodes=3))
        tensor([nan, 5.], dtype=torch.float64)
    """

    def __init__(self, links: Links, values: Tensor) -> None:
        self.links, self.values = links, values

    @classmethod
    def empty(cls, nodes: int, dtype: torch.dtype = torch.float64) -> LinkMemory:
        """Create a memory without numbers.

        Args:
            nodes: number of nodes n.
            dtype: dtype of the numbers.
        """
        return cls(Links.empty(nodes), torch.empty(0, dtype=dtype))

    def read(self, links: Links, default: float = float("nan")) -> Tensor:
        """Return the numbers of some links, [E].

        Args:
            links: links to look up.
            default: value for links that have no number.
        """
        return self.links.spread(self.values, links, default)

    def read_back(self, links: Links, default: float = float("nan")) -> Tensor:
        """Return the numbers of the opposite links, [E], whose receivers are the senders of these.

        Args:
            links: links whose opposites are looked up.
            default: value for links that have no number.

        Examples:
            >>> memory, pair = LinkMemory.empty(3), Links.of(torch.tensor([2]), torch.tensor([0]), nodes=3)
            >>> memory.write(pair, torch.tensor([0.5]))
            >>> memory.read_back(Links.complete(3), default=0)
            tensor([0.0000, 0.5000, 0.0000, 0.0000, 0.0000, 0.0000], dtype=torch.float64)
        """
        return self.links.look_up(self.values, links.senders, links.receivers, default)

    def write(self, links: Links, values: Tensor) -> None:
        """Store the numbers of some links, and overwrite former numbers of these.

        Args:
            links: links to store.
            values: [E].
        """
        indices = self.links.find(links)
        values = values.to(self.values.dtype)
        if bool((indices >= 0).all()):  # no link is new
            self.values = self.values.index_put((indices,), values)
            if len(links) == len(self.links):
                self.links = links  # the same links; `Links.find` is fast for the identical object
            return
        union = self.links.union(links)
        merged = self.values.new_empty(len(union))
        merged[union.find(self.links)] = self.values
        merged[union.find(links)] = values
        self.links, self.values = union, merged

    def write_known(self, links: Links, values: Tensor) -> None:
        """Store the numbers that are not NaN.

        Args:
            links: links to store.
            values: [E].
        """
        known = ~values.isnan()
        self.write(links.keep(known), values[known])

    def add(self, links: Links, values: Tensor) -> None:
        """Add to the stored numbers; a link without a number starts from 0.

        Args:
            links: links to increase.
            values: [E].
        """
        self.write(links, self.read(links, 0) + values)
