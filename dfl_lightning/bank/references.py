"""Model references: what engines work on.

A *model reference* is what a job starts from or scores: the shared columns of a combination of rows of any row sets,
with the personal columns of the owner's own row. "j's model on i's data", "the server's model with my head" and "my
own model" are the same kind of thing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One summand of a batch of references.

    Args:
        rows: name of a row set.
        which: long [J], one row for each reference; or float [J, rows], weights of rows.
    """

    rows: str
    which: Tensor

    @property
    def read(self) -> Tensor:
        """The rows that are read, long."""
        return torch.nonzero(self.which.any(0)).squeeze(1) if self.which.is_floating_point() else self.which.unique()

    def weights(self, rows: int) -> Tensor:
        """The same as weights of rows, float64 [J, rows]."""
        if self.which.is_floating_point():
            return self.which.double()
        return torch.nn.functional.one_hot(self.which, rows).double()

    def take(self, index: Tensor) -> Term:
        """The summands of some of the references."""
        return replace(self, which=self.which[index])


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

        Example:
            >>> own = References.rows("models", torch.arange(3))
            >>> theirs_on_mine = References.rows("trained", torch.tensor([1, 2]), owners=torch.tensor([0, 0]))
        """
        return cls((Term(name, which),), which if owners is None else owners, personal or name)

    def take(self, index: Tensor) -> References:
        """Some of the references."""
        return replace(self, terms=tuple(t.take(index) for t in self.terms), owners=self.owners[index])


def pairs_of(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The (receiver, sender) pairs where `mask` [n, P] holds, two long [J], ordered by receiver."""
    receivers, senders = torch.nonzero(mask, as_tuple=True)
    return receivers, senders
