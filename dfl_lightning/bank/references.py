"""Model references, the models that engines train and evaluate.

A *model reference* describes a model without computing it: the shared columns are a combination of rows of any row
sets, the personal columns are those of the owner's own row. "j's model on i's data", "the server's model with i's head"
and "i's own model" are all model references.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Nonzero weights of rows in J sums: a sparse matrix.

    Args:
        jobs: the sum that each weight belongs to, long [k], ascending.
        rows: the row that it multiplies, long [k]; ascending in each sum, the order in which rows are added.
        shares: the weight itself, float64 [k].
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
        """Convert a matrix [J, rows] into weights; weights are returned as they are."""
        return weights if isinstance(weights, Weights) else cls.of_dense(weights)

    @classmethod
    def of_dense(cls, matrix: Tensor) -> Weights:
        """Collect the nonzero entries of a matrix [J, rows]."""
        jobs, rows = torch.nonzero(matrix, as_tuple=True)
        return cls(jobs, rows, matrix[jobs, rows].double(), (matrix.shape[0], matrix.shape[1]))

    @classmethod
    def of_rows(cls, which: Tensor, rows: int, shares: Tensor | float = 1.0) -> Weights:
        """Make weights of at most one row in each sum.

        Args:
            which: the row of each sum, long [J]; -1: none.
            rows: number of rows.
            shares: the weight of each row, float64 [J], or of all.
        """
        jobs = torch.nonzero(which >= 0).squeeze(1)
        counted = shares[jobs] if isinstance(shares, Tensor) else torch.full((len(jobs),), shares, dtype=torch.float64)
        return cls(jobs, which[jobs], counted.double(), (len(which), rows))

    def keep(self, where: Tensor) -> Weights:
        """Select the weights where the mask, bool [k], is True."""
        return replace(self, jobs=self.jobs[where], rows=self.rows[where], shares=self.shares[where])

    def take(self, index: Tensor) -> Weights:
        """Select the sums with these indices, long [j], in this order."""
        starts, count = (each[index] for each in self._parts)
        jobs = torch.arange(len(index)).repeat_interleave(count)
        at = starts[jobs] + torch.arange(len(jobs)) - (count.cumsum(0) - count)[jobs]
        return Weights(jobs, self.rows[at], self.shares[at], (len(index), self.shape[1]))

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor]:
        """The first weight of each sum and the number of its weights, long [J] each.

        They are cached, since evaluations take a few sums at a time out of those of all clients.
        """
        count = torch.bincount(self.jobs, minlength=len(self))
        return count.cumsum(0) - count, count

    def scaled(self, factors: Tensor) -> Weights:
        """Multiply each sum by its factor, [J]."""
        return replace(self, shares=self.shares * factors.double()[self.jobs])

    def __neg__(self) -> Weights:
        return replace(self, shares=-self.shares)

    def dense(self) -> Tensor:
        """Convert the weights into a matrix, float64 [J, rows]; its size suits small federations only."""
        matrix = torch.zeros(self.shape, dtype=torch.float64)
        matrix.index_put_((self.jobs, self.rows), self.shares, accumulate=True)
        return matrix


@dataclass(frozen=True)
class Term:
    """One summand of a batch of references.

    Args:
        rows: name of a row set.
        which: one row for each reference, long [J]; or weights of rows, as `Weights` or as a float matrix [J, rows].
    """

    rows: str
    which: Tensor | Weights

    def __post_init__(self) -> None:
        if isinstance(self.which, Tensor) and self.which.is_floating_point():
            object.__setattr__(self, "which", Weights.of(self.which))

    @property
    def read(self) -> Tensor:
        """The nodes whose rows are read, long, ascending."""
        return (self.which.rows if isinstance(self.which, Weights) else self.which).unique()

    def weights(self, rows: int) -> Weights:
        """Return the summand's weights, as `Weights` of `rows` rows."""
        return self.which if isinstance(self.which, Weights) else Weights.of_rows(self.which, rows)

    def take(self, index: Tensor) -> Term:
        """Select the references with these indices."""
        return replace(self, which=self.which.take(index) if isinstance(self.which, Weights) else self.which[index])


@dataclass(frozen=True)
class References:
    """References to J models, each for an owner.

    Args:
        terms: summands; the shared columns of a model are the sum over terms of its rows.
        owners: long [J], the clients that the models are for; their personal columns complete them.
        personal: the row set of the personal columns: `models` (before this round's training) or `trained` (after it).
    """

    terms: tuple[Term, ...]
    owners: Tensor
    personal: str = "models"

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def rows(cls, name: str, which: Tensor, owners: Tensor | None = None, personal: str | None = None) -> References:
        """Refer to single rows of one set.

        Args:
            name: name of the row set.
            which: the row of each reference, long [J].
            owners: the clients whose data and personal columns are used, long [J]; default: each row's own client.
            personal: the row set of the personal columns; default: `name`.

        Examples:
            The models of clients 0, 1 and 2 themselves; and those of clients 1 and 2 on the data of client 0.

            >>> own_models = References.rows("models", torch.arange(3))
            >>> on_data_of_0 = References.rows("trained", torch.tensor([1, 2]), owners=torch.tensor([0, 0]))
        """
        return cls((Term(name, which),), which if owners is None else owners, personal or name)

    def take(self, index: Tensor) -> References:
        """Select the references with these indices."""
        return replace(self, terms=tuple(t.take(index) for t in self.terms), owners=self.owners[index])
