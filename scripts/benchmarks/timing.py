"""Ratios of times that depend little on the load and warmth of the machine.

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
        """Return the median seconds for a unit."""
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Compute (slowest - fastest) / median."""
        return (max(self.seconds[name]) - min(self.seconds[name])) / self.median(name)

    def ratio(self, slow: str, fast: str) -> Ratio:
        """Compute the ratio of `slow` to `fast`, compared within each repetition."""
        ratios = [a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True)
class Machine:
    """The device, threads and clock of a measurement.

    Args:
        device: `cpu` or `cuda`.
        threads: threads of every candidate.
        clock: `wall` or `CPU`.
    """

    device: str = "cpu"
    threads: int = field(default_factory=torch.get_num_threads)
    clock: str = "wall"

    def now(self) -> float:
        """Read the clock in seconds; on a GPU after all started work is done."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.process_time() if self.clock == "CPU" else time.perf_counter()


def one_thread() -> Machine:
    """Return a machine of a single thread with CPU time, which is comparable on a busy machine."""
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
    """Share of the processors that other programs use from now on."""

    def __init__(self) -> None:
        self._start = _ticks()

    def share(self) -> float | None:
        """Return the share of all processors, 0 to 1; None if not on Linux."""
        now = _ticks()
        if self._start is None or now is None or now[1] <= self._start[1]:
            return None
        busy, total, own = (after - before for after, before in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / total))


def _ticks() -> tuple[float, float, float] | None:
    """Read busy and total seconds of all processors, and this process's own busy ones."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    seconds = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    idle = seconds[3] + seconds[4]
    return sum(seconds) - idle, sum(seconds), sum(os.times()[:2])
