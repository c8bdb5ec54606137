"""What is remembered of links from round to round."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links.links import Links


class LinkMemory:
    """A number for each link that was ever written; a link that is down or out of reach is not forgotten.

    Args:
        links: those with a number.
        values: float64 or long [E].

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
        """Begin with nothing known.

        Args:
            nodes: n.
            dtype: of the numbers.
        """
        return cls(Links.empty(nodes), torch.empty(0, dtype=dtype))

    def read(self, links: Links, default: float = float("nan")) -> Tensor:
        """Return what is remembered of the links, [E].

        Args:
            links: which.
            default: where nothing is.
        """
        return self.links.spread(self.values, links, default)

    def read_back(self, links: Links, default: float = float("nan")) -> Tensor:
        """Return what is remembered of the same pairs the other way round, [E]: of their senders as receivers.

        Args:
            links: which.
            default: where nothing is.

        Examples:
            >>> memory, pair = LinkMemory.empty(3), Links.of(torch.tensor([2]), torch.tensor([0]), nodes=3)
            >>> memory.write(pair, torch.tensor([0.5]))
            >>> memory.read_back(Links.complete(3), default=0)
            tensor([0.0000, 0.5000, 0.0000, 0.0000, 0.0000, 0.0000], dtype=torch.float64)
        """
        return self.links.look_up(self.values, links.senders, links.receivers, default)

    def write(self, links: Links, values: Tensor) -> None:
        """Remember these numbers in the place of former ones.

        Args:
            links: which.
            values: [E].
        """
        at = self.links.find(links)
        values = values.to(self.values.dtype)
        if bool((at >= 0).all()):  # nothing new
            self.values = self.values.index_put((at,), values)
            if len(links) == len(self.links):
                self.links = links  # the same ones: a list finds itself at once
            return
        together = self.links.union(links)
        kept = self.values.new_empty(len(together))
        kept[together.find(self.links)] = self.values
        kept[together.find(links)] = values
        self.links, self.values = together, kept

    def write_known(self, links: Links, values: Tensor) -> None:
        """Remember the numbers that are not NaN.

        Args:
            links: which.
            values: [E].
        """
        known = ~values.isnan()
        self.write(links.keep(known), values[known])

    def add(self, links: Links, values: Tensor) -> None:
        """Add to what is remembered; nothing counts as 0.

        Args:
            links: which.
            values: [E].
        """
        self.write(links, self.read(links, 0) + values)
