"""Notices that processes of a run leave for each other: that one has failed alone, and which code it is in.

Exchanges need all processes, so that a process that fails alone, or is stuck in a user's code, cannot report it by an
exchange. Notices are kept in torch's store, which has connected the processes; it belongs to the first process (or
torchrun).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.distributed as dist

from dfl_lightning.utils.code.users_code import place_in_users_code

PERIOD = 1.0
"""Seconds between two checks of the notices of other processes."""
GRACE = 5.0
"""Seconds that a process has to end by itself after another has failed, since it may be writing files."""
WAITING = "waiting"
"""Place of a process that waits in an exchange."""


class Notice(NamedTuple):
    """The error of a process that fails alone.

    Attributes:
        code: exit code of the error.
        sentence: description of the error, which names the process.
    """

    code: int
    sentence: str


class Notices:
    """The notices of a run's processes.

    Args:
        store: store that all processes can reach.
        rank: rank of this process.
        count: number of processes.
    """

    def __init__(self, store: dist.Store, rank: int, count: int) -> None:
        self._store, self.rank, self.count = store, rank, count

    def tell(self, code: int, sentence: str) -> bool:
        """Tell the others that this process fails; return False if the notice could not be stored.

        Args:
            code: exit code of this process.
            sentence: description of the error, cut to 1000 characters.
        """
        return self._write("failed", json.dumps(Notice(code, sentence[:1000])))

    def told(self) -> Notice | None:
        """Read the notice of the other process with the lowest rank that has left one; None if none has."""
        for rank in range(self.count):
            text = None if rank == self.rank else self._read("failed", rank)
            if text is not None:
                return Notice(*json.loads(text))
        return None

    def is_at(self, place: str) -> None:
        """Tell the others in which code this process is."""
        self._write("place", place)

    def places(self) -> dict[int, str | None]:
        """Read the last place of each other process; None if it has not told one."""
        return {rank: self._read("place", rank) for rank in range(self.count) if rank != self.rank}

    def _write(self, what: str, text: str) -> bool:
        try:
            self._store.set(f"dfl/{what}/{self.rank}", text)
        except RuntimeError:  # the process that had the store has ended
            return False
        return True

    def _read(self, what: str, rank: int) -> str | None:
        key = f"dfl/{what}/{rank}"
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except RuntimeError:
            return None


class Pulse(threading.Thread):
    """A thread that reports this process' place, and ends the process if another has failed and it cannot end itself.

    Args:
        notices: notices of all processes of the run.
        leave: function that ends this process; its argument is the notice of the process that has failed. None: the
            process that has started this one ends it.
    """

    def __init__(self, notices: Notices, leave: Callable[[Notice], Any] | None) -> None:
        super().__init__(name="pulse-of-process", daemon=True)
        self._notices, self._leave, self._over = notices, leave, threading.Event()
        self.latest: Notice | None = None
        self.exchanges, self.inside = 0, False

    def run(self) -> None:
        """Check the notices and report this process' place, until the run is over."""
        before, reported = -1, ""
        while not self._over.wait(PERIOD):
            self.latest = None if self._leave is None else self._notices.told()
            if self._leave is not None and self.latest is not None:
                if not self._over.wait(GRACE):
                    self._leave(self.latest)
                return
            now = self.exchanges
            place = WAITING if self.inside and now == before else _place_of_main_thread()
            before = now
            if place != reported:
                reported = place
                self._notices.is_at(place)

    def end(self) -> None:
        """Stop the thread."""
        self._over.set()


def _place_of_main_thread() -> str:
    """Return the place in a user's code that the main thread executes; empty if it is in other code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else place_in_users_code(frame)


_notices: Notices | None = None
_pulse: Pulse | None = None
_all_stop = False


def join(store: dist.Store, rank: int, count: int) -> None:
    """Let this process and the others leave notices for each other from now on.

    Args:
        store: store that all processes can reach.
        rank: rank of this process.
        count: number of processes.
    """
    global _notices
    _notices = Notices(store, rank, count)


def begin(leave: Callable[[Notice], Any] | None) -> None:
    """Begin to report this process' place to the others, at the start of a run.

    Args:
        leave: function that ends this process, or None; see `Pulse`.
    """
    global _pulse, _all_stop
    end()
    _all_stop = False
    if _notices is not None:
        _pulse = Pulse(_notices, leave)
        _pulse.start()


def end() -> None:
    """Stop reporting this process' place when a run is over; notices can still be read and left."""
    global _pulse
    if _pulse is not None:
        _pulse.end()
        _pulse = None


def stop_all() -> None:
    """Note that all processes have agreed to stop and know the cause, so that no notice is necessary."""
    global _all_stop
    _all_stop = True


def all_stop() -> bool:
    """Return True if all processes have agreed to stop."""
    return _all_stop


def tell(code: int, sentence: str, about_itself: bool = True) -> bool:
    """Tell the other processes that this one fails.

    Args:
        code: exit code of this process.
        sentence: description of the error.
        about_itself: True if the error is this process' own; the notice then names the process.

    Returns:
        True if other processes can read the notice.
    """
    if _notices is None:
        return False
    return _notices.tell(code, f"process {_notices.rank} of the run: {sentence}" if about_itself else sentence)


def told() -> Notice | None:
    """Read the notice of another process that has failed; None if there is none."""
    return None if _notices is None else _notices.told()


def latest() -> Notice | None:
    """Return the notice that the last regular check has read, without a new request to the store."""
    return None if _pulse is None else _pulse.latest


@contextmanager
def waiting() -> Iterator[None]:
    """Record that this process waits for the others, for the time of a block."""
    if _pulse is None:
        yield
        return
    _pulse.exchanges += 1
    _pulse.inside = True
    try:
        yield
    finally:
        _pulse.inside = False


def who_is_late(seconds: float) -> str:
    """Describe, for a message, the processes that have not joined an exchange, and their places.

    Args:
        seconds: time that this process has waited.
    """
    places = {} if _notices is None else _notices.places()
    late = {rank: place for rank, place in places.items() if place != WAITING}
    names = " and ".join(map(str, late))
    who = f"process{'es' * (len(late) > 1)} {names}" if late else "another process"
    where = [f"process {rank} is in {place}" for rank, place in late.items() if place]
    return (
        f"{who} of the run kept the others waiting for {seconds:g} seconds{' (' * bool(where)}{'; '.join(where)}"
        f"{')' * bool(where)}; trainer.process_timeout sets how long they wait"
    )
