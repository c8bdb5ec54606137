"""Memory that is not enough, at a moment of one's choice."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from threads import Watching

import dfl_lightning
from pretended.device import Elsewhere, compute, sides, tensors_in

PACKAGE = str(Path(dfl_lightning.__file__).parent)


class Scarce(Watching):
    """The n-th allocation on the device inside fails.

    In a backward pass the error comes at its end: Python cannot raise inside of autograd on a device that is made of
    Python.

    Args:
        n: which one, from 1; 0: none.
        for_good: and so do all that follow it.

    Attributes:
        allocations: so far.
        ways: where the package allocates: the lines that lead there, the innermost first -> which allocation was the
            first one there, and which the last. Kept where none fails.
    """

    def __init__(self, n=0, for_good=False):
        super().__init__()
        self._n, self._last = n, sys.maxsize if for_good else n
        self._late = False  # a backward pass is to fail
        self._patch = pytest.MonkeyPatch()
        self.allocations = 0
        self.ways = {}

    def __enter__(self):
        backward = torch.autograd._engine_run_backward

        def run_backward(*args, **kwargs):
            found = backward(*args, **kwargs)
            if self._late:
                self._late = False
                raise _error()
            return found

        self._patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.undo()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = compute(func, args, kwargs)
        given = {id(tensor) for tensor in sides(args, kwargs)[0]}
        made = [t for t in tensors_in([result]) if isinstance(t, Elsewhere) and id(t) not in given]
        if made and not func.is_view:
            self._allocate()
        return result

    @property
    def places(self):
        """The same of each innermost line, whatever leads there."""
        found = {}
        for (line, *_), (first, last) in self.ways.items():
            former = found.get(line, (first, last))
            found[line] = (min(first, former[0]), max(last, former[1]))
        return found

    def _allocate(self):
        self.allocations += 1
        if not self._n:
            way = _way()
            self.ways[way] = (self.ways.get(way, (self.allocations,))[0], self.allocations)
        elif self._n <= self.allocations <= self._last:
            if torch._C._current_autograd_node() is None:
                raise _error()
            self._late = True


def _error():
    return torch.OutOfMemoryError("pretended: out of memory. Tried to allocate 2.00 GiB.\nA long story")


def _way():
    """The lines of the package that are being run, the innermost first; autograd's threads work for the main one."""
    frame, lines = sys._current_frames()[threading.main_thread().ident], []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            lines.append(f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(lines) or ("outside of the package",)
