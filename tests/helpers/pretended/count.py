"""Counters of costs on a GPU: launches of kernels, and waits of the host for the device."""

from collections import Counter

import torch
from threads import Watching

from pretended.device import DEVICE, Elsewhere, compute, sides

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot")
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim")
BY_MASK = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
ALLOCATIONS = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")


class Count(Watching):
    """Counts while it is entered.

    Attributes:
        launches: operations on the device that are no views and no allocations, by name.
        waits: operations after which the host must know a number, copies to the host included, by name.
        products: types of the operands of matrix products.
    """

    def __init__(self):
        super().__init__()
        self.launches, self.waits, self.products = Counter(), Counter(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name
        there, here = sides(args, kwargs)
        if there and not func.is_view and name not in ALLOCATIONS:
            self.launches[name] += 1
            to_host = name == "aten::copy_" and not isinstance(args[0], Elsewhere)
            to_host |= name == "aten::_to_copy" and kwargs.get("device", DEVICE).type != DEVICE.type
            masked = name in BY_MASK and any(index is not None and index.dtype == torch.bool for index in args[1])
            self.waits[name] += name in WAITS or to_host or masked
        if name in PRODUCTS:
            self.products |= {(there or here)[0].dtype}
        return compute(func, args, kwargs)
