"""The processes of a run: the rows that each of them owns, and the exchange of numbers and rows.

All processes run the same round on the same small fields. Only the rows of the bank, and the work on them, are
distributed. A process fetches rows of another process when it needs them, and does not keep them.

Small numbers are exchanged between CPUs by gloo, and rows between the devices that hold them. Processes on GPUs also
agree by gloo, because NCCL would detect only minutes later that another process has ended.
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
"""Code that a process sends to the others if it failed by a bug of ours; higher than the numbers of all signals."""


class StoppedElsewhere(BaseException):
    """Another process was asked to stop by the signal `signum`, and all processes stop with it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"another process was stopped by signal {signum}")
        self.signum = signum


class FailedElsewhere(UserError):
    """Another process of the run failed, and all processes stop with it."""


class BugElsewhere(RuntimeError):
    """Another process of the run failed by a bug of ours, and all processes stop with it."""


class Ranks:
    """The processes of a run and the exchanges between them. A single process has all rows and exchanges nothing.

    All processes must call the methods that exchange something in the same order.

    Args:
        owner: rank of the process that has each node's rows, long [n].
        rank: rank of this process.
        count: number of processes.

    Attributes:
        own: nodes whose rows this process has, long, ascending.
        place: positions of the nodes among the rows of this process, long [n]; -1 for nodes of other processes.
        moved: bytes that this process has received from others.
        apart: True once an exchange has failed, after which no other exchange can succeed.
        stopped_together: True if all processes have left the run at the same point, and can still save it together.
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
        """Create the object for a run of one process, which has all rows."""
        return cls(torch.zeros(nodes, dtype=torch.long))

    def at_home(self, nodes: Tensor) -> Tensor:
        """Mark the nodes whose rows this process has, bool like `nodes`; -1, for no node, is the first process'."""
        return (self.owner[nodes] == self.rank) & (nodes >= 0) | (nodes < 0) & torch.tensor(self.rank == 0)

    @contextmanager
    def repeated(self, count: int, times: int) -> Iterator[Ranks]:
        """Yield the same processes with several rows for each of the first `count` nodes.

        Row t of node i, counted from 0, is that of node t * `count` + i. In each process the first rows of all nodes
        come first, then the second ones, and so on.

        Args:
            count: number of nodes that have several rows.
            times: number of rows of each node.
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
        """Run a block that exchanges nothing; if it fails in one process, it fails at the same point in all processes.

        Raises:
            StoppedElsewhere: another process was asked to stop.
            FailedElsewhere: another process failed; with its message.
            BugElsewhere: another process failed by an error that a user cannot repair.
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
            raise error  # exchanges do not work any more, so that the processes cannot agree
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        """Exchange the outcomes of all processes; raise this process' error, or one for the error of another."""
        code = 0 if error is None else int(getattr(error, "signum", 1 if is_users(error) else BUG))
        codes = self._gather(torch.tensor([code]))[:, 0].tolist()
        if not any(codes):
            return
        culprit = codes.index(max(codes))
        own_account = "nothing" if error is None else account_of(error)
        sentence = f"process {culprit} of the run: {self._share(culprit, own_account)}"
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
        """Stop all processes here if at least one was asked to stop by a signal.

        Args:
            signum: signal that this process has received; None: none.

        Raises:
            StoppedElsewhere: this or another process was asked to stop.
        """
        if self.count > 1:
            self._settle(None if signum is None else StoppedElsewhere(signum))

    def _share(self, source: int, sentence: str) -> str:
        """Return the sentence of process `source` in all processes, at most 1000 characters of it."""
        buffer = torch.zeros(4000, dtype=torch.uint8)
        encoded = sentence[:1000].encode()
        buffer[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        received = bytes(self.from_rank(source, buffer).tolist())
        return received.rstrip(b"\0").decode()

    def texts(self, text: str) -> list[str]:
        """Return the texts of all processes in all processes, at most 1000 characters of each.

        Args:
            text: the text of this process.
        """
        return [text] if self.count == 1 else [self._share(source, text) for source in range(self.count)]

    # --- small numbers --------------------------------------------------------------------------------------------
    def join(self, index: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
        """Combine the results of all processes.

        Args:
            index: entries that this process has computed, long; exactly one process computes each entry.
            parts: tensors of float64, long or bool, [J] each, that are valid in the entries `index`.

        Returns:
            The tensors with all entries, [J] each.
        """
        if self.count == 1:
            return list(parts)
        bits = torch.zeros(len(parts), len(parts[0]) if parts else 0, dtype=torch.long)
        for line, part in zip(bits, parts, strict=True):
            line[index] = (part.contiguous().view(torch.long) if part.dtype == torch.float64 else part.long())[index]
        bits = self._exchange(dist.all_reduce, bits)  # exact for any bits, as at most one summand is not 0
        return [
            line.view(torch.float64) if part.dtype == torch.float64 else line.to(part.dtype)
            for line, part in zip(bits, parts, strict=True)
        ]

    def all(self, condition: bool) -> bool:
        """Return True if the condition holds in all processes."""
        return condition if self.count == 1 else bool(self._gather(torch.tensor([int(condition)])).all())

    def any(self, condition: bool) -> bool:
        """Return True if the condition holds in at least one process."""
        return not self.all(not condition)

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers."""
        return number if self.count == 1 else int(self._gather(torch.tensor([number])).min())

    def same(self, what: str, number: int) -> None:
        """Raise if a number is not the same in all processes.

        Args:
            what: name of the number, for the message.
            number: number of this process.

        Raises:
            UserError: the processes' numbers differ.
        """
        if self.count > 1:
            numbers = self._gather(torch.tensor([number]))[:, 0].tolist()
            if len(set(numbers)) > 1:
                raise UserError(
                    f"the processes of the run start at different places ({what} {numbers}); start them alike"
                )

    def total(self, number: int) -> int:
        """Return the sum of the processes' numbers."""
        return number if self.count == 1 else int(self._gather(torch.tensor([number])).sum())

    def from_rank(self, source: int, tensor: Tensor) -> Tensor:
        """Broadcast a tensor from one process to all.

        Args:
            source: rank of the process that has the values.
            tensor: the values; in other processes, memory of the same shape and dtype, which is overwritten.

        Returns:
            `tensor`.
        """
        self._exchange(dist.broadcast, tensor, src=source)
        if source != self.rank:
            self.moved += _bytes(tensor)
        return tensor

    def _gather(self, numbers: Tensor) -> Tensor:
        """Gather the numbers of all processes, long [k] each, as [count, k]."""
        gathered = torch.zeros(self.count, len(numbers), dtype=torch.long)
        gathered[self.rank] = numbers
        return self._exchange(dist.all_reduce, gathered)

    # --- rows -----------------------------------------------------------------------------------------------------
    def row_exchange(self, wanted: Tensor) -> RowExchange:
        """Plan to fetch the rows of other processes' nodes, `wanted`, long [g]; all processes must call this."""
        return RowExchange(self, wanted)

    def swap(self, outgoing: Sequence[Tensor], sizes: Sequence[int], like: Tensor) -> list[Tensor]:
        """Send one flat piece to each process and receive one from each.

        Args:
            outgoing: a flat tensor for each process.
            sizes: number of elements in the piece that each process sends to this one.
            like: tensor with the dtype and the device of the pieces.
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
        """Gather all nodes' rows, [n, width], in the first process' main memory; return None in other processes."""
        if self.count == 1:
            return rows
        if self.rank:
            self._exchange(dist.send, rows.contiguous(), 0)
            return None
        whole = torch.empty(len(self.owner), *rows.shape[1:], dtype=rows.dtype)
        whole[self.own] = rows.cpu()
        for source in range(1, self.count):
            nodes = torch.nonzero(self.owner == source).squeeze(1)
            block = rows.new_empty(len(nodes), *rows.shape[1:])
            self._exchange(dist.recv, block, source)
            whole[nodes] = block.cpu()
        return whole

    def _exchange(self, collective: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call a function of torch.distributed; raise `LostProcess` if another process cannot be reached."""
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
    """A plan to exchange rows between processes, made once and used for any columns.

    All processes must create one at the same time.

    Args:
        ranks: the processes of the run.
        wanted: nodes of other processes whose rows this process requests, long [g].
    """

    def __init__(self, ranks: Ranks, wanted: Tensor) -> None:
        self._ranks = ranks
        owners = ranks.owner[wanted]
        self._order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=ranks.count)
        requests = ranks._gather(counts)  # [receiving process, sending process]
        self.any = bool(requests.any())
        self._incoming, sizes = counts.tolist(), requests[:, ranks.rank].tolist()
        self._outgoing: list[Tensor] = []
        if self.any:
            ids = ranks.swap(list(wanted[self._order].split(self._incoming)), sizes, torch.empty(0, dtype=torch.long))
            self._outgoing = [ranks.place[piece] for piece in ids]

    def bring(self, rows: Tensor) -> Tensor:
        """Fetch the wanted nodes' rows, [g, columns]; each process passes its own rows, [own, columns]."""
        columns = rows.shape[1]
        pieces = self._ranks.swap(
            [rows.index_select(0, indices.to(rows.device)).reshape(-1) for indices in self._outgoing],
            [count * columns for count in self._incoming],
            rows,
        )
        back = torch.argsort(self._order).to(rows.device)
        return torch.cat([piece.view(-1, columns) for piece in pieces]).index_select(0, back)


def owners_of(cohorts: Sequence[Tensor], nodes: int, count: int) -> Tensor:
    """Assign each node to one of `count` processes, long [n]: whole cohorts in turn, then servers in turn.

    Args:
        cohorts: clients of each cohort, long.
        nodes: number of clients and servers, n.
        count: number of processes.

    Raises:
        UserError: there are more processes than cohorts.

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
