"""Independent pieces of work on several threads; results do not depend on the number of threads.

Each worker computes with one intra-op thread. This is faster than OpenMP inside many small operations, does not become
much slower on a busy machine, and keeps the order of all sums.
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
"""Seconds between two calls of the caller's `between` while pieces of work are running."""


class Abandoned(Exception):
    """The results of a piece of work are no longer needed; raised inside this piece."""


class Workers:
    """A pool of threads, as many as torch would use; see `workers`.

    Args:
        threads: number of pieces of work that run at the same time.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._stopped = threading.Event()

    def check(self) -> None:
        """Raise if the results are no longer needed; long pieces of work call this regularly.

        Raises:
            Abandoned: the call of `map` has failed.
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
        """Compute `[work(item) for item in items]` with several items at a time, started in their order.

        Args:
            work: function that is called in any thread.
            items: the items; put those with the longest work first.
            done: called in the calling thread with (index, result), in the order in which pieces end.
            between: called in the calling thread after each piece and every `PULSE` seconds; it may raise to give up.

        Raises:
            Exception: any error of `work`, `done` or `between`, after the running pieces have ended.
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
    torch.set_num_threads(1)  # OpenMP has this setting for each thread; the default is the machine's number of cores


@contextmanager
def workers(most: int | None = None) -> Iterator[Workers]:
    """Yield as many workers as torch has threads (`OMP_NUM_THREADS`); each worker computes with a single thread.

    Inside the block, torch uses one intra-op thread, so that sums do not depend on the machine. A nested call yields a
    single worker.

    Args:
        most: largest number of workers.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Workers(threads if most is None else min(threads, most))
    finally:
        torch.set_num_threads(threads)


def keep_to_own_cores(processes: int = 1) -> None:
    """Limit torch's threads to the cores that this process may use, unless OMP_NUM_THREADS is set.

    By default torch uses as many threads as the machine has cores, even if other processes use most of these.

    Args:
        processes: number of processes of the run on this machine.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(processes)))
