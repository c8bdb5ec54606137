"""What the processes of a run tell each other beside their exchanges: that one fails alone, and where it is.

Exchanges need all processes, so that one that fails alone, or is stuck in a user's code, cannot say so by them. Notices
are in torch's store, through which the processes have found each other; the first process (or torchrun) has it.
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
"""Seconds between two looks at the notices of the others."""
GRACE = 5.0
"""Seconds that a process has to end by itself after another has failed: it may be writing files."""
WAITING = "waiting"
"""Where a process is that waits in an exchange."""


class Notice(NamedTuple):
    """How a process ends that fails alone.

    Attributes:
        code: the exit code that its error has.
        sentence: what happened, and in which process.
    """

    code: int
    sentence: str


class Notices:
    """The notices of a run's processes.

    Args:
        store: reached by all of them.
        rank: this process.
        count: number of processes.
    """

    def __init__(self, store: dist.Store, rank: int, count: int) -> None:
        self._store, self.rank, self.count = store, rank, count

    def tell(self, code: int, sentence: str) -> bool:
        """Tell the others how this process ends; whether the notice could be left.

        Args:
            code: its exit code.
            sentence: what happened.
        """
        return self._write("failed", json.dumps(Notice(code, sentence[:1000])))

    def told(self) -> Notice | None:
        """What another process has told, that of the lowest rank."""
        for rank in range(self.count):
            text = None if rank == self.rank else self._read("failed", rank)
            if text is not None:
                return Notice(*json.loads(text))
        return None

    def is_at(self, place: str) -> None:
        """Tell the others where this process is."""
        self._write("place", place)

    def places(self) -> dict[int, str | None]:
        """Where each other process was last; None where it has never said so."""
        return {rank: self._read("place", rank) for rank in range(self.count) if rank != self.rank}

    def _write(self, what: str, text: str) -> bool:
        try:
            self._store.set(f"dfl/{what}/{self.rank}", text)
        except RuntimeError:  # whoever had the store has ended
            return False
        return True

    def _read(self, what: str, rank: int) -> str | None:
        key = f"dfl/{what}/{rank}"
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except RuntimeError:
            return None


class Pulse(threading.Thread):
    """Tells the others where this process is, and ends it if another has failed and it cannot end by itself.

    Args:
        notices: of the run.
        leave: ends this process, with the notice of the one that has failed; None: who started it does that.
    """

    def __init__(self, notices: Notices, leave: Callable[[Notice], Any] | None) -> None:
        super().__init__(name="pulse-of-process", daemon=True)
        self._notices, self._leave, self._over = notices, leave, threading.Event()
        self.heard: Notice | None = None
        self.exchanges, self.inside = 0, False

    def run(self) -> None:
        """Until the run is over."""
        before, said = -1, ""
        while not self._over.wait(PERIOD):
            self.heard = None if self._leave is None else self._notices.told()
            if self._leave is not None and self.heard is not None:
                if not self._over.wait(GRACE):
                    self._leave(self.heard)
                return
            now = self.exchanges
            place = WAITING if self.inside and now == before else _place()
            before = now
            if place != said:
                said = place
                self._notices.is_at(place)

    def end(self) -> None:
        """Say and do nothing any more."""
        self._over.set()


def _place() -> str:
    """Where in a user's code the main thread is; empty where it is elsewhere."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else place_in_users_code(frame)


_notices: Notices | None = None
_pulse: Pulse | None = None
_all_stop = False


def join(store: dist.Store, rank: int, count: int) -> None:
    """From now on this process and the others can leave notices for each other.

    Args:
        store: which all processes reach.
        rank: this process.
        count: number of processes.
    """
    global _notices
    _notices = Notices(store, rank, count)


def begin(leave: Callable[[Notice], Any] | None) -> None:
    """A run begins, and this process tells the others where it is.

    Args:
        leave: see `Pulse`.
    """
    global _pulse, _all_stop
    end()
    _all_stop = False
    if _notices is not None:
        _pulse = Pulse(_notices, leave)
        _pulse.start()


def end() -> None:
    """The run is over; what was told can be read, and more be told."""
    global _pulse
    if _pulse is not None:
        _pulse.end()
        _pulse = None


def stop_all() -> None:
    """All processes have agreed to stop, and know why: none has to tell the others."""
    global _all_stop
    _all_stop = True


def all_stop() -> bool:
    """Whether they have."""
    return _all_stop


def tell(code: int, sentence: str, about_itself: bool = True) -> bool:
    """Tell the other processes how this one ends.

    Args:
        code: its exit code.
        sentence: what happened.
        about_itself: it happened in this process.

    Returns:
        Whether anybody can read it.
    """
    if _notices is None:
        return False
    return _notices.tell(code, f"process {_notices.rank} of the run: {sentence}" if about_itself else sentence)


def told() -> Notice | None:
    """What another process has told of its end, if one has."""
    return None if _notices is None else _notices.told()


def heard() -> Notice | None:
    """The same, of some time ago, without asking."""
    return None if _pulse is None else _pulse.heard


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, this process waits for the others."""
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
    """A sentence about the processes that do not come to an exchange.

    Args:
        seconds: how long this one has waited.
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
