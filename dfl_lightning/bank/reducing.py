"""The operation `reduce` on plain matrices: a column-wise function of the rows that each receiver receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import (
    BLOCK_BYTES,
    EXCHANGE_BYTES,
    GPU_BLOCK_BYTES,
    STRIPS,
    RowSource,
    block_width,
    strips,
)
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.thread_pool import Workers, workers

ROWS_AT_ONCE = 1024
"""Approximate number of received rows that one call of the function gets: those of a few receivers."""

Reduce = Callable[[Tensor], Tensor]
"""A function [receivers, received, columns] -> [receivers, columns] that treats each column by itself."""


@dataclass(frozen=True)
class Received:
    """Rows of one set that receivers receive, one entry for each row and receiver.

    Args:
        rows: the set, [own, width].
        receivers: long [e].
        nodes: long [e], the nodes whose rows are received.
        added: a set, [own, width]; the parameters of the receiver's row in it are added to the received row. None:
            nothing is added.
    """

    rows: Tensor
    receivers: Tensor
    nodes: Tensor
    added: Tensor | None = None


def reduce_rows(
    received: Sequence[Received],
    fn: Reduce,
    into: Tensor,
    columns: Columns,
    ranks: Ranks,
    mixing_groups: Tensor,
    parameters: int,
) -> None:
    """Apply `fn` to the rows that each receiver receives and write the results into `into`, a block at a time.

    A block is computed before it is written, so `into` may be one of the sets that are read. One call of `fn` gets
    receivers of one mixing group that receive equally many rows, so that calls do not depend on the number of
    processes.

    Args:
        received: the same entries in every process; `fn` gets each receiver's rows in the order of the sets and of
            their entries.
        fn: function of the received rows.
        into: [own, width], written in place.
        columns: the columns that are written.
        ranks: the owners of the nodes.
        mixing_groups: long [n]; receivers with equal numbers belong to one process.
        parameters: number of columns, the first ones, that are parameters; `added` is not added to the others.

    Raises:
        UserError: `fn` returns another shape.
    """
    receivers = torch.cat([part.receivers for part in received])
    if not len(receivers) or not len(columns):
        return
    counts = torch.bincount(receivers, minlength=len(mixing_groups))
    memory = BLOCK_BYTES if into.device.type == "cpu" else GPU_BLOCK_BYTES
    width = block_width(max(ROWS_AT_ONCE, int(counts.max())), into.element_size(), memory)
    blocks = list(columns.blocks(width))
    sources, entries, at = [], [], 0
    for part in received:
        here = ranks.at_home(part.receivers)
        senders, index = part.nodes[here].unique(return_inverse=True)
        sources.append(RowSource(part.rows, senders, ranks))
        entries.append((part.receivers[here], index + at, torch.full((int(here.sum()),), part.added is not None)))
        at += len(senders)
    owners, places, relative = (torch.cat(several) for several in zip(*entries, strict=True))
    order = owners.argsort(stable=True)
    owners, places, relative = owners[order], places[order], relative[order]
    added = next((part.added for part in received if part.added is not None), None)
    chunks = _chunks(owners, counts, mixing_groups)
    at_once = max(1, EXCHANGE_BYTES // (max(1, at) * into.element_size() * width)) if ranks.count > 1 else len(blocks)
    at_once = ranks.least(at_once)

    def reduce_chunk(block: Tensor, chunk: Tensor, start: int, stop: int) -> Tensor:
        """Compute the columns [start, stop) of a chunk's receivers; `block` holds these columns of all senders."""
        rows = block.index_select(0, places[chunk].reshape(-1).to(block.device)).view(*chunk.shape, stop - start)
        end = min(stop, parameters)
        if added is not None and start < end and relative[chunk].any():
            own_rows = added[:, start:end].index_select(0, ranks.place[owners[chunk[:, 0]]].to(block.device))
            rows[:, :, : end - start] += own_rows[:, None] * relative[chunk].to(rows.device, rows.dtype)[:, :, None]
        reduced = fn(rows)
        if reduced.shape != (len(chunk), stop - start):
            raise UserError(
                f"the function that reduces rows returns shape {list(reduced.shape)} for rows of shape "
                f"{list(rows.shape)}; it must return {[len(chunk), stop - start]}: receivers, columns"
            )
        return reduced

    with workers() as pool:
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU distributes the work itself

        def work(strip: list[tuple[int, int]]) -> None:
            for start, stop in strip:
                pool.check()
                block = torch.cat([source.read(start, stop) for source in sources])
                results = [reduce_chunk(block, chunk, start, stop) for chunk in chunks]
                for chunk, values in zip(chunks, results, strict=True):
                    where = ranks.place[owners[chunk[:, 0]]].to(into.device)
                    into[:, start:stop].index_copy_(0, where, values.to(into.dtype))

        for first in range(0, len(blocks), at_once):
            some = blocks[first : first + at_once]
            for source in sources:
                source.bring(some)
            with ranks.together():
                if chunks:
                    pool.map(work, strips(some, STRIPS))


def _chunks(owners: Tensor, counts: Tensor, mixing_groups: Tensor) -> list[Tensor]:
    """Group the entries by receivers that share a call of the function, long [receivers, received] each.

    Args:
        owners: the receiver of each entry, in ascending order.
        counts: number of entries of each node, long [n].
        mixing_groups: long [n].
    """
    chunks = []
    firsts = torch.cat([torch.zeros(1, dtype=torch.long), torch.nonzero(owners.diff()).squeeze(1) + 1])
    receivers = owners[firsts] if len(owners) else owners
    for group in mixing_groups[receivers].unique() if len(receivers) else []:
        for count in counts[receivers[mixing_groups[receivers] == group]].unique().tolist():
            alike = firsts[(mixing_groups[receivers] == group) & (counts[receivers] == count)]
            for part in alike.split(max(1, ROWS_AT_ONCE // count)):
                chunks.append(part[:, None] + torch.arange(count))
    return chunks
