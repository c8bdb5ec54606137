"""Many short lists of indices in one tensor, since a tensor for each client would need more memory than its content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor


def sorted_pieces(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Cut an array into pieces and sort each of them; the pieces are views of one new array.

    Args:
        values: integers, [N].
        lengths: lengths of the pieces, int64 [p]; their sum is N.

    Examples:
        >>> [piece.tolist() for piece in sorted_pieces(np.array([3, -1, 2, 2, 0]), np.array([2, 0, 3]))]
        [[-1, 3], [], [0, 2, 2]]
    """
    ends = lengths.cumsum()
    least, width = (int(values.min()), int(np.ptp(values)) + 1) if len(values) else (0, 1)
    begins = (np.arange(len(lengths)) * width - least).repeat(lengths)
    ascending = np.sort(begins + values) - begins
    return [ascending[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


class IndexLists(Sequence[Tensor]):
    """A list of indices for each client, stored in one tensor; a client's list is a view that is made on access.

    Args:
        parts: indices of each client, int64.

    Attributes:
        counts: number of indices of each client, int64 [m].

    Examples:
        >>> lists = IndexLists([np.array([4, 5]), np.array([], dtype=np.int64), np.array([0])])
        >>> len(lists), lists[0].tolist(), lists.counts.tolist()
        (3, [4, 5], [2, 0, 1])
    """

    def __init__(self, parts: Sequence[np.ndarray] | Sequence[Tensor]) -> None:
        self.counts = torch.tensor([len(part) for part in parts], dtype=torch.long)
        self._flat = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
        self._starts = self.counts.cumsum(0) - self.counts
        self._ends = self.counts.cumsum(0).tolist()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...

    @overload
    def __getitem__(self, client: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, client: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(client, slice):
            return tuple(self[number] for number in range(*client.indices(len(self))))
        end = self._ends[client]  # raises IndexError for a client that does not exist
        number = client % len(self)
        return self._flat[self._ends[number - 1] if number else 0 : end]

    def __iter__(self) -> Iterator[Tensor]:
        start = 0
        for end in self._ends:
            yield self._flat[start:end]
            start = end

    def together(self, clients: Tensor) -> Tensor:
        """Concatenate the lists of some clients, int64.

        Args:
            clients: ids of the clients, long; an id may occur several times.

        Examples:
            >>> IndexLists([np.array([4, 5]), np.array([7]), np.array([0])]).together(torch.tensor([2, 0, 2]))
            tensor([0, 4, 5, 0])
        """
        counts = self.counts[clients]
        shift = self._starts[clients] - (counts.cumsum(0) - counts)
        return self._flat[torch.arange(int(counts.sum())) + shift.repeat_interleave(counts)]

    def at(self, clients: Tensor, places: Tensor) -> Tensor:
        """Return the indices at some positions in the lists of some clients, int64, in the shape of `places`.

        Args:
            clients: ids of the clients, long; broadcast with `places`.
            places: positions in the clients' lists, long, counted from 0.

        Examples:
            >>> lists = IndexLists([np.array([4, 5]), np.array([7]), np.array([0])])
            >>> lists.at(torch.tensor([2, 0, 0]), torch.tensor([0, 1, 0]))
            tensor([0, 5, 4])
        """
        return self._flat[self._starts[clients] + places]
