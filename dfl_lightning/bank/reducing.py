"""Rows that become a function of the rows that receivers receive, column by column."""

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
"""Rows that are put side by side for a call of the function, about: those of a few receivers."""

Reduce = Callable[[Tensor], Tensor]
"""[receivers, received, columns] -> [receivers, columns], each column by itself."""


@dataclass(frozen=True)
class Received:
    """Rows of one set that receivers receive, an entry a row and receiver.

    Args:
        rows: the set, [own, width].
        receivers: long [e].
        nodes: whose rows, long [e].
        added: a set of which the parameters of the receiver's own row are added, [own, width]; or None.
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
    """Rows of the receivers in `into` become `fn` of what they receive, a block of columns at a time.

    A block is computed before it is written, so `into` may be one of the sets that are read. Receivers of a group that
    receive equally many rows go together: what is computed in one call does not depend on the number of processes.

    Args:
        received: the same entries in every process; each receiver's rows are handed on in the order of the sets and of
            their entries.
        fn: column by column.
        into: [own, width], written in place.
        columns: which columns.
        ranks: who owns which nodes.
        mixing_groups: long [n], receivers with equal numbers belong to one process.
        parameters: how many columns, the first ones, are parameters; `added` adds nothing to the others.

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
        heard, place = part.nodes[here].unique(return_inverse=True)
        sources.append(RowSource(part.rows, heard, ranks))
        entries.append((part.receivers[here], place + at, torch.full((int(here.sum()),), part.added is not None)))
        at += len(heard)
    owners, places, relative = (torch.cat(several) for several in zip(*entries, strict=True))
    order = owners.argsort(stable=True)
    owners, places, relative = owners[order], places[order], relative[order]
    added = next((part.added for part in received if part.added is not None), None)
    chunks = _chunks(owners, counts, mixing_groups)
    at_once = max(1, EXCHANGE_BYTES // (max(1, at) * into.element_size() * width)) if ranks.count > 1 else len(blocks)
    at_once = ranks.least(at_once)

    def one(block: Tensor, chunk: Tensor, start: int, stop: int) -> Tensor:
        """The new columns of a chunk's receivers; `chunk`: their entries, long [receivers, received]."""
        rows = block.index_select(0, places[chunk].reshape(-1).to(block.device)).view(*chunk.shape, stop - start)
        end = min(stop, parameters)
        if added is not None and start < end and relative[chunk].any():
            own = added[:, start:end].index_select(0, ranks.place[owners[chunk[:, 0]]].to(block.device))
            rows[:, :, : end - start] += own[:, None] * relative[chunk].to(rows.device, rows.dtype)[:, :, None]
        found = fn(rows)
        if found.shape != (len(chunk), stop - start):
            raise UserError(
                f"the function that reduces rows returns {list(found.shape)} for {list(rows.shape)}; it must be "
                f"{[len(chunk), stop - start]}: receivers, columns"
            )
        return found

    with workers() as pool:
        if into.device.type != "cpu":
            pool = Workers(1)  # a GPU shares the work out itself

        def work(strip: list[tuple[int, int]]) -> None:
            for start, stop in strip:
                pool.check()
                block = torch.cat([source.read(start, stop) for source in sources])
                found = [one(block, chunk, start, stop) for chunk in chunks]
                for chunk, values in zip(chunks, found, strict=True):
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
    """Entries of receivers that go together, long [receivers, received] each.

    Args:
        owners: the receiver of each entry, in ascending order.
        counts: entries of each node, long [n].
        mixing_groups: long [n].
    """
    found = []
    firsts = torch.cat([torch.zeros(1, dtype=torch.long), torch.nonzero(owners.diff()).squeeze(1) + 1])
    who = owners[firsts] if len(owners) else owners
    for group in mixing_groups[who].unique() if len(who) else []:
        for count in counts[who[mixing_groups[who] == group]].unique().tolist():
            some = firsts[(mixing_groups[who] == group) & (counts[who] == count)]
            for part in some.split(max(1, ROWS_AT_ONCE // count)):
                found.append(part[:, None] + torch.arange(count))
    return found
