"""The connection between the processes of a run, which is hidden from all code except the run's own exchanges.

With a visible process group, a torchmetrics metric would sum the numbers of different clients, a SyncBatchNorm would
mix their samples, and a barrier in a data set would wait for processes that do something else. So the default process
group is hidden during a run and restored for each of the run's own exchanges. Code that works in one process then
works in several, with the same results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from dfl_lightning.distributed import notices
from dfl_lightning.utils.errors import UNREACHABLE, UserError, is_gpu_failure, is_out_of_memory


class LostProcess(UserError):
    """Another process of the run has ended, so that no exchange is possible any more."""


class Overdue(LostProcess):
    """Another process of the run has not joined an exchange in time."""


@dataclass
class _Connection:
    group: dist.ProcessGroup | None = None
    """The default process group while it is hidden."""
    patience: float = float("inf")
    """Seconds that an exchange waits for the other processes."""


_connection = _Connection()


def hide(patience: float = float("inf")) -> None:
    """Hide the default process group from all code except the run's own exchanges, until `show` is called.

    Args:
        patience: time-out of the group in seconds, after which `exchange` raises `Overdue`.
    """
    if dist.is_initialized():
        _connection.group, dist.group.WORLD = dist.group.WORLD, None
    _connection.patience = patience


def show() -> None:
    """Restore the default process group."""
    if _connection.group is not None:
        dist.group.WORLD, _connection.group = _connection.group, None


def is_connected() -> bool:
    """Return True if there is a default process group, hidden or not."""
    return _connection.group is not None or dist.is_initialized()


@contextmanager
def connected() -> Iterator[None]:
    """Restore the default process group and end the notices between processes when a run, the block, is over."""
    try:
        yield
    finally:
        notices.end()
        show()


@contextmanager
def shown() -> Iterator[None]:
    """Restore the default process group for the time of a block."""
    hidden = _connection.group is not None
    show()
    try:
        yield
    finally:
        if hidden:
            hide(_connection.patience)


@contextmanager
def exchange() -> Iterator[None]:
    """Allow a call of torch.distributed, which all processes of the run must make in the same order.

    Raises:
        LostProcess: another process has ended.
        Overdue: another process has not joined in time.
    """
    began = time.monotonic()
    with shown(), notices.waiting():
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error) or is_gpu_failure(error):
                raise  # the error has its cause in this process
            if time.monotonic() - began >= _connection.patience:
                raise Overdue(notices.who_is_late(_connection.patience)) from error
            raise LostProcess(UNREACHABLE) from error
