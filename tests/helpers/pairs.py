"""Numbers of links as matrices, which read well in tests of a few clients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.comparing.similarity import Comparison, compare_rows
from dfl_lightning.links import Links
from dfl_lightning.topology import Topology


def compare_pairs(bank: Bank, rows: str | Tensor, pairs: Tensor, *args: Any, **options: Any) -> Comparison:
    """`Bank.compare` of the pairs where bool [m, m] holds, as matrices with NaN elsewhere."""
    return as_matrices(bank.compare(rows, Links.from_mask(pairs), *args, **options), pairs)


def compare_row_pairs(read: Any, count: int, pairs: Tensor, *args: Any, **options: Any) -> Comparison:
    """`compare_rows`, likewise."""
    return as_matrices(compare_rows(read, count, Links.from_mask(pairs), *args, **options), pairs)


def as_matrices(found: Comparison, pairs: Tensor) -> Comparison:
    """The numbers of the pairs as matrices, NaN elsewhere."""
    links = Links.from_mask(pairs)
    return Comparison(links.dense(found.cosines), links.dense(found.distances))


def weight_matrix(topology: Topology, round: int = 0) -> Tensor:
    """The weights of a round's links as a matrix, receiver by sender, 0 where there is no link."""
    weights = topology.weights(round)
    assert weights is not None
    return topology.linked(round).dense(weights, 0.0)
