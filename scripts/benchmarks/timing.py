"""Ratios of times that a busy or warming machine spoils as little as possible.

Candidates take turns within one run, in an order that rotates from repetition to repetition, and are compared within
each repetition; the first one warms up and is thrown away. What other programs took of the processors meanwhile is
measured too, where the system says so.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Candidate:
    """One way to do some work.

    Args:
        run: does it and returns how many units (samples, pairs, calls) it did.
        prepare: called before each run, outside of the measured time.
    """

    run: Callable[[], int]
    prepare: Callable[[], object] = lambda: None


class Ratio(NamedTuple):
    """Median, lowest and highest of the ratios of all repetitions."""

    median: float
    low: float
    high: float


@dataclass
class Times:
    """Seconds for a unit of work.

    Args:
        seconds: by candidate, one for each repetition.
        clock: `wall`, or `CPU` for the process's time on the processors.
        others: share of the processors that other programs took meanwhile; None where unknown.
    """

    seconds: dict[str, list[float]]
    clock: str
    others: float | None = None

    def median(self, name: str) -> float:
        """Seconds for a unit."""
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """(Slowest - fastest) / median."""
        return (max(self.seconds[name]) - min(self.seconds[name])) / self.median(name)

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times as long `slow` takes as `fast`, compared within each repetition."""
        ratios = [a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True)
class Machine:
    """Where and how things are measured.

    Args:
        device: `cpu` or `cuda`.
        threads: threads of every candidate.
        clock: `wall` or `CPU`.
    """

    device: str = "cpu"
    threads: int = field(default_factory=torch.get_num_threads)
    clock: str = "wall"

    def now(self) -> float:
        """Seconds; on a GPU after everything that was started there is done."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.process_time() if self.clock == "CPU" else time.perf_counter()


def one_thread() -> Machine:
    """A single thread, measured by its time on the processor: comparable on a machine that is not quiet."""
    return Machine("cpu", 1, "CPU")


def alternate(
    candidates: Mapping[str, Candidate],
    repeats: int,
    machine: Machine,
    around_warm_up: Callable[[str], AbstractContextManager] = lambda name: nullcontext(),
) -> Times:
    """Measure candidates in turns.

    Args:
        candidates: by name.
        repeats: repetitions that count.
        machine: threads, device and clock.
        around_warm_up: entered around each candidate's first run, which does not count.
    """
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with _threads(machine.threads):
        for name in names:
            candidates[name].prepare()
            with around_warm_up(name):
                candidates[name].run()
        others = Others()
        for repeat in range(repeats):
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                candidates[name].prepare()
                start = machine.now()
                units = candidates[name].run()
                seconds[name].append((machine.now() - start) / units)
        return Times(seconds, machine.clock, others.share())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Others:
    """How busy other programs keep the processors from now on."""

    def __init__(self) -> None:
        self._start = _ticks()

    def share(self) -> float | None:
        """Of all processors, 0 to 1; None off Linux."""
        now = _ticks()
        if self._start is None or now is None or now[1] <= self._start[1]:
            return None
        busy, total, own = (after - before for after, before in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / total))


def _ticks() -> tuple[float, float, float] | None:
    """Busy and total seconds of all processors, and this process's own busy ones."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    seconds = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    idle = seconds[3] + seconds[4]
    return sum(seconds) - idle, sum(seconds), sum(os.times()[:2])
