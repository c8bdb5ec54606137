"""Outgoing updates, a block of clients at a time, with the clients' random draws and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.functional import entries_kept, largest_entries
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.thread_pool import Workers, workers
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round

BLOCK_BYTES = 2**24
"""Bytes of the updates that a thread works on at once; a policy makes a few temporary tensors of this size."""


class Senders:
    """The clients of a block of updates, as `Outgoing.send` gets them.

    Args:
        round: the round, after its training.
        ids: the clients, long [k]; all belong to this process.
        purpose: purpose of random draws; draws for different purposes are independent.
        starts: shared parameters of the models that the clients' training started from, [k, width].

    Attributes:
        ids: the clients, long [k], in the order of the updates' rows.
        starts: shared parameters of the models that the clients' training started from, [k, width].
    """

    def __init__(self, round: Round, ids: Tensor, purpose: str, starts: Tensor) -> None:
        self.ids, self.starts = ids, starts
        self._round, self._purpose, self._draws = round, purpose, 0
        bank = round.bank
        self._like, self._ranges = bank.stored("models"), bank.layout.shared_parameters.ranges
        self._places = bank.ranks.place[ids].to(self._like.device)

    # --- draws --------------------------------------------------------------------------------------------------------
    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw standard normal numbers, [k, ...]; a client's numbers depend only on seed, policy, round and client."""
        return self._drawn(torch.randn, shape)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Draw uniform numbers in [0, 1), [k, ...]; a client's numbers depend on the same things as in `normal`."""
        return self._drawn(torch.rand, shape)

    def _drawn(self, draw: Callable[..., Tensor], shape: Sequence[int]) -> Tensor:
        if not len(shape) or shape[0] != len(self.ids):
            raise UserError(
                f"outgoing {self._purpose} draws numbers of shape {list(shape)}; "
                "the first dimension is that of the senders, len(senders.ids)"
            )
        numbers = math.prod(shape[1:])
        drawn = torch.empty(len(self.ids), numbers, dtype=self._like.dtype)
        for row, client in zip(drawn, self.ids.tolist(), strict=True):
            generator = self._round.client_generator(f"outgoing {self._purpose}", client, self._draws)
            draw(numbers, generator=generator, dtype=self._like.dtype, out=row)
        self._draws += 1
        return drawn.view(*shape).to(self._like.device)

    # --- memory -------------------------------------------------------------------------------------------------------
    def rows(self, name: str) -> Tensor:
        """Read the shared parameters of the senders' rows, [k, width], of a set that the policy declares in `row_sets`.

        They are a copy.
        """
        return read_columns(self._round.bank.stored(name), self._places, self._ranges)

    def write(self, name: str, rows: Tensor) -> None:
        """Replace the shared parameters of the senders' rows of a set.

        Args:
            name: name of a row set that the policy declares in `row_sets`.
            rows: the new values, [k, width].
        """
        write_columns(self._round.bank.next_of(name), self._places, self._ranges, rows)

    # --- mathematics --------------------------------------------------------------------------------------------------
    def largest(self, updates: Tensor, share: float) -> Tensor:
        """Keep the largest entries of each update by absolute value; the others become zero.

        Args:
            updates: [k, width].
            share: share of the entries that are kept, 0 to 1; at least one entry is kept.
        """
        return largest_entries(updates, entries_kept(share, updates.shape[1]))


Send = Callable[[Tensor, Senders], Tensor]
"""A function of updates, [k, width], and their senders that returns the updates to send instead, [k, width]."""


def send_updates(round: Round, who: Tensor, send: Send, purpose: str, remembered: Sequence[str] = ()) -> None:
    """Replace the senders' updates by those that `send` returns, and write start plus update into `sent`.

    Only shared parameters change: buffers have no updates and are sent as they are.

    Senders are processed in blocks. A block holds clients of one cohort, in the order of their ids, as many as
    `BLOCK_BYTES` allows. So blocks depend on the config and the round only, not on the number of processes and threads.

    Args:
        round: the round, after its training.
        who: long, the senders; the same in all processes.
        send: function of updates and senders; see `Outgoing.send`.
        purpose: purpose of random draws.
        remembered: row sets that `send` writes.
    """
    bank = round.bank
    if not len(who):
        return
    sent, columns = bank.change_sent(who), bank.layout.shared_parameters
    ranges = columns.ranges
    for name in remembered:
        bank.next_of(name)  # makes the set before several threads write into it
    rows_at_once = max(1, BLOCK_BYTES // (len(columns) * sent.element_size()))
    blocks = list(_blocks(who[bank.ranks.at_home(who)], bank.mixing_groups(), rows_at_once))
    with (
        bank.timed("send"),
        bank.starts() as start_of,
        bank.ranks.together(),
        one_sentence(),
        workers() as pool,
        one_blas_thread(),
    ):

        def work(ids: Tensor) -> None:
            places = bank.ranks.place[ids].to(sent.device)
            read = start_of(ids)
            start = torch.cat([read(*span) for span in ranges], dim=1)
            updates = send(read_columns(sent, places, ranges) - start, Senders(round, ids, purpose, start))
            if updates.shape != start.shape or not updates.is_floating_point():
                got = f"{str(updates.dtype)[6:]} {list(updates.shape)}"
                raise UserError(
                    f"{nth_round(round.index)}: outgoing {purpose} sends {got}; it must be float {list(start.shape)}, "
                    "as the updates are"
                )
            write_columns(sent, places, ranges, start + updates.to(start))

        threads = pool if sent.device.type == "cpu" else Workers(1)  # a GPU distributes the work itself
        threads.map(work, blocks)


def _blocks(ids: Tensor, mixing_groups: Tensor, most: int) -> Iterator[Tensor]:
    """Divide the clients into blocks of at most `most` clients of one mixing group."""
    group_of = mixing_groups[ids]
    for group in group_of.unique():
        yield from ids[group_of == group].split(most)


def read_columns(rows: Tensor, places: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Copy columns of some rows, [k, width].

    Args:
        rows: rows of all nodes in this process.
        places: indices of the rows, long [k].
        ranges: [start, stop) of the columns.
    """
    return torch.cat([rows[:, start:stop].index_select(0, places) for start, stop in ranges], dim=1)


def write_columns(rows: Tensor, places: Tensor, ranges: Sequence[tuple[int, int]], values: Tensor) -> None:
    """Write columns of some rows.

    Args:
        rows: rows of all nodes in this process.
        places: indices of the rows, long [k].
        ranges: [start, stop) of the columns.
        values: [k, width], where width is the total length of the ranges.
    """
    for (start, stop), part in zip(ranges, values.split([stop - start for start, stop in ranges], dim=1), strict=True):
        rows[:, start:stop].index_copy_(0, places, part.to(rows.dtype))
