"""What the clients of a block send: their updates on the way out, and what they may draw and remember."""

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
"""How much of the updates a thread works on at once; a policy makes a few temporary tensors as large."""


class Senders:
    """The clients of a block of updates, as `Outgoing.send` finds them.

    Args:
        round: the round, after its training.
        ids: the clients, long [k]; all belong to this process.
        purpose: what draws are for; those of different purposes are independent.
        starts: the models that updates are the change of, [k, width].

    Attributes:
        ids: the clients, long [k], in the order of the updates' rows.
        starts: shared parameters of the models that their training started from, [k, width].
    """

    def __init__(self, round: Round, ids: Tensor, purpose: str, starts: Tensor) -> None:
        self.ids, self.starts = ids, starts
        self._round, self._purpose, self._draws = round, purpose, 0
        bank = round.bank
        self._like, self._ranges = bank.stored("models"), bank.layout.shared_parameters.ranges
        self._places = bank.ranks.place[ids].to(self._like.device)

    # --- draws --------------------------------------------------------------------------------------------------------
    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers, [k, ...]: each client's are those of (seed, policy, round, client) alone."""
        return self._drawn(torch.randn, shape)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers from 0 to 1, [k, ...], drawn as `normal` draws."""
        return self._drawn(torch.rand, shape)

    def _drawn(self, draw: Callable[..., Tensor], shape: Sequence[int]) -> Tensor:
        if not len(shape) or shape[0] != len(self.ids):
            raise UserError(
                f"outgoing {self._purpose} draws numbers of shape {list(shape)}; "
                "the first dimension is that of the senders, len(senders.ids)"
            )
        numbers = math.prod(shape[1:])
        found = torch.empty(len(self.ids), numbers, dtype=self._like.dtype)
        for row, client in zip(found, self.ids.tolist(), strict=True):
            generator = self._round.stream(f"outgoing {self._purpose}", client, self._draws)
            draw(numbers, generator=generator, dtype=self._like.dtype, out=row)
        self._draws += 1
        return found.view(*shape).to(self._like.device)

    # --- memory -------------------------------------------------------------------------------------------------------
    def rows(self, name: str) -> Tensor:
        """The shared parameters of the senders' rows of a set that the policy declares in `row_sets`, [k, width]."""
        return read_columns(self._round.bank.stored(name), self._places, self._ranges)

    def write(self, name: str, rows: Tensor) -> None:
        """Replace the shared parameters of the senders' rows of a set.

        Args:
            name: of the row set.
            rows: the new values, [k, width].
        """
        write_columns(self._round.bank.next_of(name), self._places, self._ranges, rows)

    # --- mathematics --------------------------------------------------------------------------------------------------
    def largest(self, updates: Tensor, share: float) -> Tensor:
        """Keep the largest entries of each update by absolute value; the others become zero.

        Args:
            updates: [k, width].
            share: of the entries that are kept, 0 to 1; at least one is.
        """
        return largest_entries(updates, entries_kept(share, updates.shape[1]))


Send = Callable[[Tensor, Senders], Tensor]
"""Updates [k, width] and their senders -> what these send in their place, [k, width]."""


def send_updates(round: Round, who: Tensor, send: Send, purpose: str, remembered: Sequence[str] = ()) -> None:
    """Rows of `sent` become their start plus what `send` makes of what they are beyond it, a block at a time.

    Only shared parameters do: buffers are no updates, and are sent as they are.

    A block holds clients of one cohort, in the order of their ids, as many as `BLOCK_BYTES` has room for: a function of
    the config and the round alone, whatever the number of processes and threads.

    Args:
        round: after its training.
        who: long, the senders; the same in all processes.
        send: see `Outgoing.send`.
        purpose: of draws.
        remembered: row sets that `send` writes.
    """
    bank = round.bank
    if not len(who):
        return
    sent, columns = bank.change_sent(who), bank.layout.shared_parameters
    ranges = columns.ranges
    for name in remembered:
        bank.next_of(name)  # made here, and not by several threads
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
            start = torch.cat([read(*few) for few in ranges], dim=1)
            found = send(read_columns(sent, places, ranges) - start, Senders(round, ids, purpose, start))
            if found.shape != start.shape or not found.is_floating_point():
                got = f"{str(found.dtype)[6:]} {list(found.shape)}"
                raise UserError(
                    f"{nth_round(round.index)}: outgoing {purpose} sends {got}; it must be float {list(start.shape)}, "
                    "as the updates are"
                )
            write_columns(sent, places, ranges, start + found.to(start))

        threads = pool if sent.device.type == "cpu" else Workers(1)  # a GPU shares the work out itself
        threads.map(work, blocks)


def _blocks(ids: Tensor, mixing_groups: Tensor, most: int) -> Iterator[Tensor]:
    """The clients of each group in turn, at most so many at a time."""
    of = mixing_groups[ids]
    for group in of.unique():
        yield from ids[of == group].split(most)


def read_columns(rows: Tensor, places: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Columns of some rows, [k, width]; a copy.

    Args:
        rows: of all nodes in this process.
        places: indices of the rows, long [k].
        ranges: [start, stop) of the columns.
    """
    return torch.cat([rows[:, start:stop].index_select(0, places) for start, stop in ranges], dim=1)


def write_columns(rows: Tensor, places: Tensor, ranges: Sequence[tuple[int, int]], values: Tensor) -> None:
    """Write columns of some rows.

    Args:
        rows: of all nodes in this process.
        places: indices of the rows, long [k].
        ranges: [start, stop) of the columns.
        values: [k, width], width being the length of all ranges.
    """
    for (start, stop), part in zip(ranges, values.split([stop - start for start, stop in ranges], dim=1), strict=True):
        rows[:, start:stop].index_copy_(0, places, part.to(rows.dtype))
