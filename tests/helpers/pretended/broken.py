"""A device that fails for good, at a moment of one's choice."""

import pytest
from threads import Watching

from pretended.device import Elsewhere, compute, sides

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
"""What torch says after a kernel has read where it must not: at this operation, and at each that follows it."""


class Broken(Watching):
    """From the moment on at which `now` is set, every operation on the device fails, and so does saving what is there.

    Operations of a backward pass do not fail, since Python cannot raise inside it; see `Scarce`.

    Attributes:
        now: whether it has failed.
    """

    now = False

    def __enter__(self):
        reduce = Elsewhere.__reduce_ex__

        def read(tensor, protocol):
            if self.now:
                raise RuntimeError(ILLEGAL)
            return reduce(tensor, protocol)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(Elsewhere, "__reduce_ex__", read)
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.undo()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.now and sides(args, kwargs)[0]:
            raise RuntimeError(ILLEGAL)
        return compute(func, args, kwargs)
