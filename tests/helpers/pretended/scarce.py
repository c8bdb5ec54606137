"""Memory that is not enough, at a moment of one's choice."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretended.device import Elsewhere, compute, sides


class Scarce(TorchDispatchMode):
    """The n-th allocation on the device inside fails, and no other.

    Args:
        n: which one, from 1; 0: none.

    Attributes:
        allocations: so far.
    """

    def __init__(self, n=0):
        super().__init__()
        self._n, self.allocations = n, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = compute(func, args, kwargs)
        given = {id(tensor) for tensor in sides(args, kwargs)[0]}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Elsewhere) and id(leaf) not in given]
        if made and not func.is_view:
            self.allocations += 1
            if self.allocations == self._n:
                raise torch.OutOfMemoryError("pretended: out of memory. Tried to allocate 2.00 GiB.\nA long story")
        return result
