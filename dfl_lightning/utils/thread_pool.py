"""Independent pieces of work on several threads: who does which piece never shows in a result.

Each worker computes with one intra-op thread. Splitting the work ourselves is faster than OpenMP inside every small
operation, does not collapse on a busy machine, and keeps the order of every sum.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from dfl_lightning.utils.cores import cores

T = TypeVar("T")
R = TypeVar("R")

PULSE = 0.1
"""Seconds between two looks at the caller's `between` while pieces of work are under way."""


class Abandoned(Exception):
    """Raised inside a piece of work whose results are no longer needed."""


class Workers:
    """As many threads as torch would have used; see `workers`.

    Args:
        threads: how many pieces of work run at once.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._stopped = threading.Event()

    def check(self) -> None:
        """To be called regularly by a long piece of work.

        Raises:
            Abandoned: the caller has given up.
        """
        if self._stopped.is_set():
            raise Abandoned

    def map(
        self,
        work: Callable[[T], R],
        items: Sequence[T],
        done: Callable[[int, R], Any] = lambda index, result: None,
        between: Callable[[], Any] = lambda: None,
    ) -> list[R]:
        """`[work(item) for item in items]`, several at a time; items are begun in their order.

        Args:
            work: runs in any thread.
            items: put the longest first.
            done: called in the calling thread with (index, result), in the order in which pieces end.
            between: called in the calling thread after each piece and every `PULSE` seconds; may raise to give up.

        Raises:
            Exception: whatever `work`, `done` or `between` raises, after the running pieces have ended.
        """
        if self.threads == 1 or len(items) <= 1:
            return self._in_turn(work, items, done, between)
        results: dict[int, R] = {}
        with ThreadPoolExecutor(min(self.threads, len(items)), initializer=_settle) as pool:
            try:
                waiting = {pool.submit(work, item): index for index, item in enumerate(items)}
                while waiting:
                    ended, _ = wait(waiting, timeout=PULSE, return_when=FIRST_COMPLETED)
                    for future in ended:
                        index = waiting.pop(future)
                        results[index] = future.result()
                        done(index, results[index])
                    between()
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [results[index] for index in range(len(items))]

    def _in_turn(
        self, work: Callable[[T], R], items: Sequence[T], done: Callable[[int, R], Any], between: Callable[[], Any]
    ) -> list[R]:
        results: list[R] = []
        for index, item in enumerate(items):
            results.append(work(item))
            done(index, results[-1])
            between()
        return results


def _settle() -> None:
    torch.set_num_threads(1)  # OpenMP counts per thread: a new one would start with the machine's number


@contextmanager
def workers(most: int | None = None) -> Iterator[Workers]:
    """Share work out over torch's number of threads (`OMP_NUM_THREADS`), each computing with a single one.

    Inside, torch works with one intra-op thread, so that sums do not depend on the machine; a nested call gets a
    single worker.

    Args:
        most: at most so many workers.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Workers(threads if most is None else min(threads, most))
    finally:
        torch.set_num_threads(threads)


def keep_to_own_cores(processes: int = 1) -> None:
    """Leave torch no more threads than this process has cores, unless OMP_NUM_THREADS says how many it is to have.

    Torch's own number is that of the machine's cores, also where others use most of them.

    Args:
        processes: of the run on this machine.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(processes)))
