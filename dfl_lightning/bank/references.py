"""Model references: what engines work on.

A *model reference* is what a job starts from or scores: the shared columns of a combination of rows of any row sets,
with the personal columns of the owner's own row. "j's model on i's data", "the server's model with my head" and "my
own model" are the same kind of thing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Weights of rows in J sums, of which only those that are not 0 are there.

    Args:
        jobs: which sum each weight is of, long [k], ascending.
        rows: the row that it counts, long [k]; ascending for each sum, where rows are added in this order.
        shares: how much, float64 [k].
        shape: (J, number of rows).

    Examples:
        >>> Weights.of_dense(torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])).rows
        tensor([0, 2, 1])
    """

    jobs: Tensor
    rows: Tensor
    shares: Tensor
    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    @classmethod
    def of(cls, weights: Weights | Tensor) -> Weights:
        """The weights themselves, or the entries of a matrix [J, rows] that are not 0."""
        return weights if isinstance(weights, Weights) else cls.of_dense(weights)

    @classmethod
    def of_dense(cls, matrix: Tensor) -> Weights:
        """The entries of a matrix [J, rows] that are not 0."""
        jobs, rows = torch.nonzero(matrix, as_tuple=True)
        return cls(jobs, rows, matrix[jobs, rows].double(), (matrix.shape[0], matrix.shape[1]))

    @classmethod
    def of_rows(cls, which: Tensor, rows: int, shares: Tensor | float = 1.0) -> Weights:
        """One row in each sum.

        Args:
            which: the row, long [J]; -1: none.
            rows: number of rows.
            shares: of each, float64 [J], or of all.
        """
        jobs = torch.nonzero(which >= 0).squeeze(1)
        counted = shares[jobs] if isinstance(shares, Tensor) else torch.full((len(jobs),), shares, dtype=torch.float64)
        return cls(jobs, which[jobs], counted.double(), (len(which), rows))

    def keep(self, where: Tensor) -> Weights:
        """The weights where bool [k] holds."""
        return replace(self, jobs=self.jobs[where], rows=self.rows[where], shares=self.shares[where])

    def take(self, index: Tensor) -> Weights:
        """The weights of some of the sums, long [j], in this order."""
        starts, count = (each[index] for each in self._parts)
        jobs = torch.arange(len(index)).repeat_interleave(count)
        at = starts[jobs] + torch.arange(len(jobs)) - (count.cumsum(0) - count)[jobs]
        return Weights(jobs, self.rows[at], self.shares[at], (len(index), self.shape[1]))

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor]:
        """Where the weights of each sum begin, and how many they are, long [J] each.

        Kept, for evaluations take a few sums at a time out of those of all clients.
        """
        count = torch.bincount(self.jobs, minlength=len(self))
        return count.cumsum(0) - count, count

    def scaled(self, factors: Tensor) -> Weights:
        """Each sum times a factor, [J]."""
        return replace(self, shares=self.shares * factors.double()[self.jobs])

    def __neg__(self) -> Weights:
        return replace(self, shares=-self.shares)

    def dense(self) -> Tensor:
        """A matrix, float64 [J, rows]: for small federations."""
        matrix = torch.zeros(self.shape, dtype=torch.float64)
        matrix.index_put_((self.jobs, self.rows), self.shares, accumulate=True)
        return matrix


@dataclass(frozen=True)
class Term:
    """One summand of a batch of references.

    Args:
        rows: name of a row set.
        which: long [J], one row for each reference; or `Weights` of rows, for which a float matrix [J, rows] will do.
    """

    rows: str
    which: Tensor | Weights

    def __post_init__(self) -> None:
        if isinstance(self.which, Tensor) and self.which.is_floating_point():
            object.__setattr__(self, "which", Weights.of(self.which))

    @property
    def read(self) -> Tensor:
        """The rows that are read, long."""
        return (self.which.rows if isinstance(self.which, Weights) else self.which).unique()

    def weights(self, rows: int) -> Weights:
        """The same as weights of rows."""
        return self.which if isinstance(self.which, Weights) else Weights.of_rows(self.which, rows)

    def take(self, index: Tensor) -> Term:
        """The summands of some of the references."""
        return replace(self, which=self.which.take(index) if isinstance(self.which, Weights) else self.which[index])


@dataclass(frozen=True)
class References:
    """J models at once, each for an owner.

    Args:
        terms: the shared columns of model r are the sum over terms of the named rows.
        owners: long [J], whose personal columns complete the model.
        personal: the row set that these are read from: `models` (before this round's training) or `trained` (after).
    """

    terms: tuple[Term, ...]
    owners: Tensor
    personal: str = "models"

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def rows(cls, name: str, which: Tensor, owners: Tensor | None = None, personal: str | None = None) -> References:
        """Rows of one set as references.

        Args:
            name: of the row set.
            which: the row of each reference, long [J].
            owners: whose data and personal columns it uses, long [J]; default: the row's own client.
            personal: the row set of the personal columns; default: `name`.

        Examples:
            >>> own = References.rows("models", torch.arange(3))
            >>> theirs_on_mine = References.rows("trained", torch.tensor([1, 2]), owners=torch.tensor([0, 0]))
        """
        return cls((Term(name, which),), which if owners is None else owners, personal or name)

    def take(self, index: Tensor) -> References:
        """Some of the references."""
        return replace(self, terms=tuple(t.take(index) for t in self.terms), owners=self.owners[index])
