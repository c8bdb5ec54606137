"""The device: tensors that wrap others of the CPU, and the operations on them."""

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map


class _Module:
    """What torch looks for as `torch.pretended`; random numbers are drawn on the CPU alone."""

    is_available = staticmethod(lambda: False)  # nobody should choose it by itself
    device_count = staticmethod(lambda: 0)  # of devices with a generator of their own
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


backend_registration._setup_privateuseone_for_python_backend("pretended", backend_module=_Module())

DEVICE = torch.device("pretended", 0)

COPIES = ("aten::copy_", "aten::_to_copy")
HOST_INDICES = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
"""Operations that take indices of the CPU, as on CUDA."""


class Elsewhere(torch.Tensor):
    """Says that it is on `DEVICE`, and on a GPU."""

    is_cuda = property(lambda self: True)

    def _replace(self, value):
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner

    data = property(lambda self: self.detach(), _replace)

    def __reduce_ex__(self, protocol):
        return self.inner.__reduce_ex__(protocol)  # in a file it is an ordinary tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=DEVICE
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """What an operation gives: on the CPU, with tensors that stay where the operation's tensors are."""
    name, kwargs = func._schema.name, dict(kwargs)
    there, here = sides(args, kwargs)
    if there and name not in COPIES and any(tensor.dim() for tensor in here):
        values = args[2:3] if name.startswith("aten::index_put") or name == "aten::_index_put_impl_" else ()
        at_home = [value for value in values if isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere)]
        if name not in HOST_INDICES or not isinstance(args[0], Elsewhere) or any(value.dim() for value in at_home):
            raise RuntimeError(f"{name} meets tensors of two devices")
    asked = kwargs.get("device")
    stays = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    wrappers = {id(tensor.inner): tensor for tensor in there}
    result = func(*tree_map(inner_of, args), **tree_map(inner_of, kwargs))
    if name == "aten::copy_":
        return args[0]

    def outer(value):
        if not isinstance(value, torch.Tensor):
            return value
        return wrappers.get(id(value), Elsewhere(value) if stays else value)

    return tree_map(outer, result)


def sides(args, kwargs):
    """The tensors among arguments: on the device, and on the CPU."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    return there, [tensor for tensor in tensors if not isinstance(tensor, Elsewhere)]


def inner_of(value):
    return value.inner if isinstance(value, Elsewhere) else value


# Where torch makes tensors itself, for an index that is a list for example, nothing of Python's is asked but these.
def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Elsewhere(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source, target, non_blocking=False):
    inner_of(target).copy_(inner_of(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
