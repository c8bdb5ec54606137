"""Squared distances between all rows of many small groups, by a Gram matrix for each group, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.sparse_similarity import GPU_PIECE, GPU_STRIP_BYTES, PIECE, Summed, strip_width
from dfl_lightning.bank.mixing import block_width
from dfl_lightning.links import Links
from dfl_lightning.utils.thread_pool import Workers

MOST_ENTRIES = 8
"""Entries of the groups' Gram matrices for each pair of rows from which on each pair is computed by itself, since most
are in many groups. An entry takes about a tenth of the time of a pair by itself."""


def gram_is_cheaper(pairs: Links, groups: Links) -> bool:
    """Return True if Gram matrices of all groups take less time than the pairs one by one.

    Args:
        pairs: the different pairs of rows that have a group in common.
        groups: for each group, as a receiver, its rows.
    """
    return int(groups.count.square().sum()) < MOST_ENTRIES * len(pairs)


def squares_in_groups(
    pool: Workers, summed: Summed, pairs: Links, groups: Links, rows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Compute the squared distance of each pair, and the sum of the squared lengths of its rows, float64 [E] each.

    Squared distances that are small next to the squared lengths have lost digits. A pair that is in several groups is
    computed in the first of them, so that the result does not depend on threads and processes, but on the groups.

    Args:
        pool: the threads that the groups are divided among.
        summed: function that sums over strips of the rows' columns.
        pairs: the pairs, with the larger id as receiver; each is in a group.
        groups: for each group, as a receiver, its rows.
        rows: number of rows.
        device: the device of the rows.
    """
    on_cpu = device.type == "cpu"
    width = strip_width(rows) if on_cpu else block_width(rows, 8, GPU_STRIP_BYTES)
    pieces = list(_pieces(groups, (PIECE if on_cpu else GPU_PIECE) // width))
    sizes = [piece.numel() * piece.shape[1] for piece in pieces]

    def products(strip: Tensor) -> Tensor:
        """Compute the inner products of a strip [rows, columns] in all groups, concatenated."""
        total = torch.empty(sum(sizes), dtype=torch.float64, device=strip.device)
        parts = list(zip(pieces, total.split(sizes), strict=True))

        def add_groups(part: tuple[Tensor, Tensor]) -> None:
            pool.check()
            piece, grams = part
            members = strip.index_select(0, piece.flatten().to(strip.device)).double().unflatten(0, piece.shape)
            grams.view(*piece.shape, piece.shape[1]).copy_(_gram(members))

        pool.map(add_groups, parts)
        return total

    grams = summed(width, products).cpu().split(sizes)
    larger, smaller, squared, inner = (
        torch.cat(of_pieces) for of_pieces in zip(*map(_lower_triangles, pieces, grams), strict=True)
    )
    entries = torch.arange(len(larger))
    first = torch.zeros(len(pairs), dtype=torch.long)
    first.scatter_reduce_(0, pairs.places(larger, smaller), entries, "amin", include_self=False)
    return (squared - 2 * inner)[first], squared[first]


def _lower_triangles(piece: Tensor, grams: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both rows of each pair, the sum of their squared lengths, and their inner product, for all groups."""
    size = piece.shape[1]
    gram = grams.view(-1, size, size)
    first, second = torch.tril_indices(size, size, offset=-1)
    squared = gram.diagonal(dim1=1, dim2=2)
    values = piece[:, first], piece[:, second], squared[:, first] + squared[:, second], gram[:, first, second]
    return values[0].flatten(), values[1].flatten(), values[2].flatten(), values[3].flatten()


def _gram(members: Tensor) -> Tensor:
    """Multiply the rows of each group, [groups, k, columns], with each other; return [groups, k, k]."""
    if members.device.type != "cpu":
        return torch.bmm(members, members.transpose(1, 2))
    matrices = members.numpy()
    return torch.from_numpy(matrices @ matrices.transpose(0, 2, 1))  # BLAS' `syrk` for each, whatever else is computed


def _pieces(groups: Links, rows: int) -> Iterator[Tensor]:
    """Divide the groups into pieces, long [groups, k]: the rows of groups of equal size k.

    Args:
        groups: for each group, as a receiver, its rows.
        rows: largest number of rows of a piece; a piece has at least one group.
    """
    for size in groups.count.unique().tolist():
        if size > 1:
            alike = torch.nonzero(groups.count == size).squeeze(1)
            index = groups.starts[alike][:, None] + torch.arange(size)
            yield from groups.senders[index].split(max(1, rows // size))
