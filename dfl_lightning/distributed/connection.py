"""The connection between the processes of a run, which nothing but the run itself uses.

Inside a run, torch.distributed looks as it does in a run of one process: a torchmetrics metric would add up the numbers
of different clients, a SyncBatchNorm mix their samples, and a barrier in a data set wait for processes that are doing
something else. So the default process group is taken away while a run lasts, and put back for each exchange of the
run's own. Whatever works in one process works in several, and gives the same numbers.
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
    """Another process of the run has ended: nothing can be exchanged any more."""


class Overdue(LostProcess):
    """Another process of the run has not come to an exchange in time."""


@dataclass
class _Connection:
    group: dist.ProcessGroup | None = None
    """The default process group while it is hidden."""
    patience: float = float("inf")
    """Seconds that an exchange waits for the other processes."""


_connection = _Connection()


def hide(patience: float = float("inf")) -> None:
    """Hide the default process group from everything but the run's own exchanges; until `show`.

    Args:
        patience: the group's time-out in seconds, which `exchange` tells lateness by.
    """
    if dist.is_initialized():
        _connection.group, dist.group.WORLD = dist.group.WORLD, None
    _connection.patience = patience


def show() -> None:
    """Put the default process group back."""
    if _connection.group is not None:
        dist.group.WORLD, _connection.group = _connection.group, None


def is_connected() -> bool:
    """Whether there is a default process group, hidden or not."""
    return _connection.group is not None or dist.is_initialized()


@contextmanager
def connected() -> Iterator[None]:
    """Around a run: what it hides is put back, and its processes tell each other nothing afterwards."""
    try:
        yield
    finally:
        notices.end()
        show()


@contextmanager
def shown() -> Iterator[None]:
    """The default process group is there inside."""
    hidden = _connection.group is not None
    show()
    try:
        yield
    finally:
        if hidden:
            hide(_connection.patience)


@contextmanager
def exchange() -> Iterator[None]:
    """Around a call of torch.distributed that all processes of the run make, in the same order.

    Raises:
        LostProcess: another process has ended, or (`Overdue`) has not come in time.
    """
    began = time.monotonic()
    with shown(), notices.waiting():
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error) or is_gpu_failure(error):
                raise  # it is this process' own trouble
            if time.monotonic() - began >= _connection.patience:
                raise Overdue(notices.who_is_late(_connection.patience)) from error
            raise LostProcess(UNREACHABLE) from error
