"""Torch's number of threads, set where a test is about it and put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set torch's number of threads, and with it that of the engines' workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Watching(TorchDispatchMode):
    """See every operation: a mode sees those of its own thread only, so there is no other while it is entered."""

    def __enter__(self):
        self._alone = threads(1)
        self._alone.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._alone.__exit__(None, None, None)
