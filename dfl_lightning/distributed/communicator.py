"""Which process owns which rows, and how numbers and rows travel between processes.

Every process runs the same round on the same small fields; only the rows of the bank, and the work on them, are shared
out. What a process needs of another's rows is brought when it is needed and forgotten afterwards.

Small numbers travel between CPUs, by gloo, and rows between the devices that they are on. So processes on GPUs, too,
agree by gloo: NCCL would notice only minutes later that another process has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dfl_lightning.distributed import notices
from dfl_lightning.distributed.connection import LostProcess, exchange
from dfl_lightning.utils.code.users_code import account_of, is_users
from dfl_lightning.utils.errors import UserError

BUG = 1000
"""What a process answers that has met a bug of ours; above the numbers of all signals, which are answers too."""


class StoppedElsewhere(BaseException):
    """Another process was asked to stop by a signal, and all stop with it; `signum` says by which one."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"another process was stopped by signal {signum}")
        self.signum = signum


class FailedElsewhere(UserError):
    """Another process of the run failed, and all stop with it."""


class BugElsewhere(RuntimeError):
    """Another process of the run has met a bug of ours, and all stop with it."""


class Ranks:
    """The processes of a run. With one of them everything is at home and nothing travels.

    Methods that exchange something are called by all processes in the same order.

    Args:
        owner: long [n], the process that has each node's rows.
        rank: this process.
        count: number of processes.

    Attributes:
        own: long, the nodes whose rows are here, in ascending order.
        place: long [n], their positions among the rows of this process; -1 elsewhere.
        moved: bytes that have come here from other processes.
        apart: an exchange has failed, so that no other one can succeed.
        stopped_together: all processes have left the run at the same place, and can still save it together.
    """

    def __init__(self, owner: Tensor, rank: int = 0, count: int = 1) -> None:
        self.owner, self.rank, self.count = owner, rank, count
        self.own = torch.nonzero(owner == rank).squeeze(1)
        self.place = torch.full((len(owner),), -1)
        self.place[self.own] = torch.arange(len(self.own))
        self.moved = 0
        self.apart = self.stopped_together = False

    @classmethod
    def alone(cls, nodes: int) -> Ranks:
        """One process that has everything."""
        return cls(torch.zeros(nodes, dtype=torch.long))

    def at_home(self, nodes: Tensor) -> Tensor:
        """Whose rows are here, bool like `nodes`; what belongs to no node (-1) is the first process' work."""
        return (self.owner[nodes] == self.rank) & (nodes >= 0) | (nodes < 0) & torch.tensor(self.rank == 0)

    @contextmanager
    def repeated(self, count: int, times: int) -> Iterator[Ranks]:
        """Inside, the same processes with several rows for each of the first `count` nodes.

        The second row of node i is that of node `count` + i, and comes after all first ones in each process, and so on.

        Args:
            count: nodes that have them.
            times: rows of each.
        """
        ranks = Ranks(torch.cat([self.owner[:count]] * times), self.rank, self.count)
        ranks.apart = self.apart
        try:
            yield ranks
        finally:
            self.moved += ranks.moved
            self.apart |= ranks.apart
            self.stopped_together |= ranks.stopped_together

    # --- agreement --------------------------------------------------------------------------------------------------
    @contextmanager
    def together(self) -> Iterator[None]:
        """Work of this process alone; if it fails in one process, it fails in all of them, and at the same place.

        Raises:
            StoppedElsewhere: another process was asked to stop.
            FailedElsewhere: another process failed; with its message.
            BugElsewhere: another process failed, and no user can mend it.
        """
        if self.count == 1:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
        if isinstance(error, LostProcess):
            raise error  # no other process can answer
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        """Raise the error of this process, or go the way of another that has one."""
        code = 0 if error is None else int(getattr(error, "signum", 1 if is_users(error) else BUG))
        codes = self._gather(torch.tensor([code]))[:, 0].tolist()
        if not any(codes):
            return
        culprit = codes.index(max(codes))
        own = "nothing" if error is None else account_of(error)
        sentence = f"process {culprit} of the run: {self._share(culprit, own)}"
        if error is None and codes[culprit] == BUG:
            error = BugElsewhere(sentence)
        elif error is None and codes[culprit] > 1:
            error = StoppedElsewhere(codes[culprit])
        elif error is None:
            error = FailedElsewhere(sentence)
        self.stopped_together = True
        notices.stop_all()
        raise error

    def agree(self, signum: int | None) -> None:
        """If any process was asked to stop by a signal, all stop here.

        Raises:
            StoppedElsewhere: this or another process was asked to.
        """
        if self.count > 1:
            self._settle(None if signum is None else StoppedElsewhere(signum))

    def _share(self, source: int, sentence: str) -> str:
        """The sentence of process `source`, at most 1000 characters of it."""
        buffer = torch.zeros(4000, dtype=torch.uint8)
        encoded = sentence[:1000].encode()
        buffer[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        received = bytes(self.from_rank(source, buffer).tolist())
        return received.rstrip(b"\0").decode()

    # --- small things ---------------------------------------------------------------------------------------------
    def join(self, index: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
        """Results of all processes.

        Args:
            index: long, the entries that this process has computed; each entry is computed by exactly one.
            parts: float64, long or bool [J] each, right in the entries `index`.

        Returns:
            The same, right everywhere.
        """
        if self.count == 1:
            return list(parts)
        bits = torch.zeros(len(parts), len(parts[0]) if parts else 0, dtype=torch.long)
        for line, part in zip(bits, parts, strict=True):
            line[index] = (part.contiguous().view(torch.long) if part.dtype == torch.float64 else part.long())[index]
        bits = self._exchange(dist.all_reduce, bits)  # one summand is not 0: exact for any bits
        return [
            line.view(torch.float64) if part.dtype == torch.float64 else line.to(part.dtype)
            for line, part in zip(bits, parts, strict=True)
        ]

    def all(self, condition: bool) -> bool:
        """Whether the condition holds in every process."""
        return condition if self.count == 1 else bool(self._gather(torch.tensor([int(condition)])).all())

    def any(self, condition: bool) -> bool:
        """Whether the condition holds in some process."""
        return not self.all(not condition)

    def least(self, number: int) -> int:
        """The smallest of the processes' numbers."""
        return number if self.count == 1 else int(self._gather(torch.tensor([number])).min())

    def same(self, what: str, number: int) -> None:
        """Refuse processes that differ in a number.

        Args:
            what: the number's name, for the message.
            number: of this process.

        Raises:
            UserError: a number that should be the same everywhere is not.
        """
        if self.count > 1:
            numbers = self._gather(torch.tensor([number]))[:, 0].tolist()
            if len(set(numbers)) > 1:
                raise UserError(
                    f"the processes of the run start at different places ({what} {numbers}); start them alike"
                )

    def total(self, number: int) -> int:
        """The sum over processes."""
        return number if self.count == 1 else int(self._gather(torch.tensor([number])).sum())

    def from_rank(self, source: int, tensor: Tensor) -> Tensor:
        """Broadcast a tensor from one process to all.

        Args:
            source: the rank that has it.
            tensor: there, the values; elsewhere, memory of the same shape and type, which is overwritten.

        Returns:
            `tensor`.
        """
        self._exchange(dist.broadcast, tensor, src=source)
        if source != self.rank:
            self.moved += _bytes(tensor)
        return tensor

    def _gather(self, numbers: Tensor) -> Tensor:
        """The numbers, long [k], of each process: [count, k]."""
        found = torch.zeros(self.count, len(numbers), dtype=torch.long)
        found[self.rank] = numbers
        return self._exchange(dist.all_reduce, found)

    # --- rows -----------------------------------------------------------------------------------------------------
    def row_exchange(self, wanted: Tensor) -> RowExchange:
        """A plan to bring the rows of the nodes `wanted`, long [g], here, from processes that all plan at once."""
        return RowExchange(self, wanted)

    def swap(self, outgoing: Sequence[Tensor], sizes: Sequence[int], like: Tensor) -> list[Tensor]:
        """Send one flat piece to each process and receive one from each.

        Args:
            outgoing: a flat tensor for each process.
            sizes: numbers in the piece that comes from each process.
            like: says type and device.
        """
        received = like.new_empty(sum(sizes))
        sent = torch.cat(list(outgoing)) if outgoing else like.new_empty(0)
        self._exchange(
            dist.all_to_all_single,
            received,
            sent,
            output_split_sizes=list(sizes),
            input_split_sizes=[len(piece) for piece in outgoing],
        )
        pieces = list(received.split(list(sizes)))
        self.moved += sum(_bytes(piece) for source, piece in enumerate(pieces) if source != self.rank)
        return pieces

    def gather_rows(self, rows: Tensor) -> Tensor | None:
        """All nodes' rows, [n, width] in main memory, in the first process; None in the others."""
        if self.count == 1:
            return rows
        if self.rank:
            self._exchange(dist.send, rows.contiguous(), 0)
            return None
        whole = torch.empty(len(self.owner), *rows.shape[1:], dtype=rows.dtype)
        whole[self.own] = rows.cpu()
        for source in range(1, self.count):
            theirs = torch.nonzero(self.owner == source).squeeze(1)
            block = rows.new_empty(len(theirs), *rows.shape[1:])
            self._exchange(dist.recv, block, source)
            whole[theirs] = block.cpu()
        return whole

    def _exchange(self, collective: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A call of torch.distributed; a process that cannot be reached ends the run with one sentence."""
        if self.apart:
            raise LostProcess("another process of the run has ended")
        try:
            with exchange():
                collective(tensor, *args, **kwargs)
        except BaseException:
            self.apart = True  # also a second Ctrl-C in the middle of an exchange
            raise
        return tensor


class RowExchange:
    """Rows exchanged between processes: requests are settled once, for any columns.

    Args:
        ranks: the processes; all of them plan an exchange at once.
        wanted: long [g], nodes whose rows this process asks for; they belong to others.
    """

    def __init__(self, ranks: Ranks, wanted: Tensor) -> None:
        self._ranks = ranks
        owners = ranks.owner[wanted]
        self._order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=ranks.count)
        asked = ranks._gather(counts)  # [who asks, whom]
        self.any = bool(asked.any())
        self._coming, leaving = counts.tolist(), asked[:, ranks.rank].tolist()
        self._leaving: list[Tensor] = []
        if self.any:
            ids = ranks.swap(list(wanted[self._order].split(self._coming)), leaving, torch.empty(0, dtype=torch.long))
            self._leaving = [ranks.place[piece] for piece in ids]

    def bring(self, rows: Tensor) -> Tensor:
        """The wanted nodes' rows, [g, columns], where each process gives its own rows [own, columns]."""
        columns = rows.shape[1]
        pieces = self._ranks.swap(
            [rows.index_select(0, places.to(rows.device)).reshape(-1) for places in self._leaving],
            [count * columns for count in self._coming],
            rows,
        )
        back = torch.argsort(self._order).to(rows.device)
        return torch.cat([piece.view(-1, columns) for piece in pieces]).index_select(0, back)


def owners_of(cohorts: Sequence[Tensor], nodes: int, count: int) -> Tensor:
    """Which of `count` processes owns each node, long [n]: whole cohorts, and servers, in turn.

    Args:
        cohorts: the clients of each.
        nodes: clients and servers, n.
        count: processes.

    Raises:
        UserError: more processes than cohorts.

    Examples:
        >>> owners_of([torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2])], nodes=5, count=2)
        tensor([0, 1, 0, 0, 0])
    """
    if count > len(cohorts):
        raise UserError(
            f"trainer.devices: {count} processes for {len(cohorts)} cohorts of clients, which are not divided; "
            f"use {len(cohorts)} processes at most, or --trainer.cohorts {count} (on GPUs: more clients)"
        )
    owner = torch.full((nodes,), -1)
    for index, cohort in enumerate(cohorts):
        owner[cohort] = index % count
    servers = torch.nonzero(owner < 0).squeeze(1)
    owner[servers] = torch.arange(len(servers)) % count
    return owner


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
